"""Files made by the libraries whose formats we read; each test runs where its library is installed."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from test_readers import good, reasons

from promptkit.pipeline import detokenize, inspect
from promptkit.readers import find_shards, read

ROWS = [([5, 6, 7], [0, 0, 1]), ([0, 163586, 9, 9], [0, 1, 1, 0]), ([1], [1])]
HI = [{"role": "user", "content": "Grüße 🙂 你好"}, {"role": "assistant", "content": "Ho"}]


def library(name: str):
    """Import a library, or skip: some that are installed still cannot be imported without all of their extras."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name}: {error}")


def all_rows(root):
    tree = find_shards(root)
    items = [item for shard in tree.shards for item in read(tree.root, shard)]
    assert reasons(items) == []
    assert {a.status for a in tree.account} <= {"skipped"}
    return good(items)


def ids_and_masks(records):
    return [(r.ids.tolist(), r.mask.astype(int).tolist()) for r in records]


def test_mosaicml_streaming(tmp_path):
    streaming = library("streaming")
    columns = {"input_ids": "ndarray:int32", "loss_mask": "ndarray", "messages": "json", "id": "str", "n": "int"}
    for compression in (None, "zstd:3", "gz"):
        out = tmp_path / str(compression).replace(":", "")
        with streaming.MDSWriter(out=str(out), columns=columns, compression=compression, size_limit=400) as writer:
            for k, (ids, mask) in enumerate(ROWS):
                writer.write({"input_ids": np.array(ids, np.int32), "loss_mask": np.array(mask, np.uint8),
                              "messages": HI, "id": f"s{k}", "n": k})  # fmt: skip
        records = all_rows(out)
        assert ids_and_masks(records) == ROWS
        assert [(r.id, r.messages) for r in records] == [(f"s{k}", HI) for k in range(3)]


def test_litdata(tmp_path):
    library("litdata")
    torch = library("torch")
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    def save(name, rows, **options):
        writer = BinaryWriter(str(tmp_path / name), chunk_size=2, **options)
        for k, row in enumerate(rows):
            writer[k] = row
        writer.done()
        writer.merge()
        return all_rows(tmp_path / name)

    tokens = save("tokens", [torch.tensor(i, dtype=torch.int32) for i, _ in ROWS], item_loader=TokensLoader())
    assert [r.ids.tolist() for r in tokens] == [i for i, _ in ROWS]
    dicts = save(
        "dicts", [{"input_ids": torch.tensor(i), "loss_mask": np.array(m), "text": "é", "n": 1.5} for i, m in ROWS]
    )
    assert ids_and_masks(dicts) == ROWS
    assert [r.text for r in dicts] == ["é"] * 3
    lists = save("lists", [{"input_ids": i, "messages": json.dumps(HI)} for i, _ in ROWS])
    assert [r.ids.tolist() for r in lists] == [i for i, _ in ROWS]
    assert lists[0].messages == HI


@pytest.mark.parametrize("token_size", [2, 4])
def test_datatrove(token_size, tmp_path):
    tokenizer = library("datatrove.pipeline.tokens.tokenizer")
    rows = [(ids, mask) for ids, mask in ROWS if max(ids) < 1 << 8 * token_size]
    file = tokenizer.TokenizedFile(
        str(tmp_path), "00000_x.ds", save_loss_metadata=True, tokenizer_name_or_path="moonshotai/Kimi-K2.5",
        save_final_metadata=True, token_size=token_size,
    )  # fmt: skip
    for ids, mask in rows:
        file.write(ids, np.array(mask, bool))
    file.close()
    assert ids_and_masks(all_rows(tmp_path)) == rows
    assert find_shards(tmp_path).evidence["tokenizer"] == "moonshotai/Kimi-K2.5"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_megatron(dtype, tmp_path):
    indexed = library("megatron.core.datasets.indexed_dataset")
    torch = library("torch")
    documents = [[[5, 6, 7]], [[0, 60000], [9, 9]], [[1]]]
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "a_text_document.bin"), dtype=dtype)
    for sentences in documents:
        for ids in sentences:
            builder.add_item(torch.tensor(ids))
        builder.end_document()
    builder.finalize(str(tmp_path / "a_text_document.idx"))
    assert [r.ids.tolist() for r in all_rows(tmp_path)] == [[i for s in d for i in s] for d in documents]


def test_webdataset(tmp_path):
    webdataset = library("webdataset")
    for name in ("a.tar", "b.tar.gz"):
        with webdataset.TarWriter(str(tmp_path / name)) as sink:
            for k, (ids, mask) in enumerate(ROWS):
                sink.write({"__key__": f"{k:04d}", "input_ids.npy": np.array(ids), "loss_mask.npy": np.array(mask, np.int8),
                            "json": {"messages": HI}, "cls": k})  # fmt: skip
    records = all_rows(tmp_path)
    assert ids_and_masks(records) == ROWS * 2
    assert [(r.id, r.messages) for r in records] == [(f"{k:04d}", HI) for k in range(3)] * 2


def test_numpy(tmp_path):
    ids, mask = np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4) % 2
    np.savez(tmp_path / "a.npz", input_ids=ids, loss_mask=mask)
    np.savez_compressed(tmp_path / "b.npz", input_ids=ids, loss_mask=mask)
    np.save(tmp_path / "c_input_ids.npy", ids.astype(">u2"))
    np.save(tmp_path / "c_loss_mask.npy", mask.astype(bool))
    assert ids_and_masks(all_rows(tmp_path)) == list(zip(ids.tolist(), mask.tolist(), strict=True)) * 3


def test_safetensors(tmp_path):
    """As speculators stores hidden states, and stacked as NeMo Automodel does."""
    library("safetensors")
    from safetensors.numpy import save_file

    ids, mask = np.arange(12).reshape(3, 4), np.arange(12).reshape(3, 4) % 2
    save_file({"hidden_states": np.ones((4, 2, 8), np.float16), "token_ids": ids[0]}, tmp_path / "hs_0.safetensors")
    stacked = {"aux_hidden_states": np.ones((3, 4, 8), np.float16), "input_ids": ids, "loss_mask": mask}
    save_file({**stacked, "attention_mask": np.ones_like(ids)}, tmp_path / "shard-000000.safetensors")
    first, *others = all_rows(tmp_path)
    assert first.ids.tolist() == ids[0].tolist()
    assert ids_and_masks(others) == list(zip(ids.tolist(), mask.tolist(), strict=True))


def test_datasets_prepared_by_trainers(tmp_path):
    datasets = library("datasets")
    row = {"input_ids": [1, 7, 8, 2, 1, 9, 2, 0, 0], "labels": [-100, -100, 8, 2, -100, 9, 2, -100, -100]}
    axolotl = {**row, "position_ids": [0, 1, 2, 3, 0, 1, 2, 0, 0], "attention_mask": [1] * 9}
    factory = {**row, "attention_mask": [1, 1, 1, 1, 2, 2, 2, 0, 0]}
    expected = [([1, 7, 8, 2], [0, 0, 1, 1]), ([1, 9, 2], [0, 1, 1])]
    for name, stored in (("last_run_prepared", axolotl), ("tokenized", factory)):
        datasets.Dataset.from_list([stored, stored]).save_to_disk(str(tmp_path / name))
        records = all_rows(tmp_path / name)
        assert [r.row for r in records] == [0, 1, 2, 3]
        attended = [(r.ids[r.attention].tolist(), r.mask[r.attention].astype(int).tolist()) for r in records]
        assert attended == expected * 2


# ---- trainers' own preparation of data, with a tokenizer of bytes and ChatML's markers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALKS = [
    [{"role": "user", "content": "Grüße 🙂 你好"}, {"role": "assistant", "content": "Ho"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
     {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}],
]  # fmt: skip


def fast_tokenizer(folder):
    """A transformers tokenizer, saved where promptkit finds it."""
    transformers = library("transformers")
    parts = library("tokenizers")
    vocabulary = {c: i for i, c in enumerate(sorted(parts.pre_tokenizers.ByteLevel.alphabet()))}
    bpe = parts.Tokenizer(parts.models.BPE(vocabulary, []))
    bpe.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = parts.decoders.ByteLevel()
    bpe.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )
    fast.save_pretrained(folder)
    return fast


def recovered(root, out):
    detokenize(root, out, processes=1)
    return [json.loads(line)["messages"] for line in out.read_text(encoding="utf-8").splitlines()]


def flat(row, field):
    return np.asarray(row[field]).reshape(-1).tolist()


def supervised(row):
    return [int(label != -100) for label in flat(row, "labels")]


def test_specforge_prepares_its_cache(tmp_path):
    """`build_eagle3_dataset`: an Arrow stream called .pkl, rows shuffled, a default system turn put in."""
    prepare = library("specforge.data.preprocessing")
    datasets = library("datasets")
    tokenizer = fast_tokenizer(tmp_path / "mix" / "tokenizer")
    rows = datasets.Dataset.from_list([{"id": str(k), "conversations": c} for k, c in enumerate(TALKS)])
    written = prepare.build_eagle3_dataset(
        rows, tokenizer, chat_template="qwen", max_length=512, num_proc=1, cache_key="k",
        cache_dir=str(tmp_path / "mix" / "processed_dataset"),
    )  # fmt: skip
    assert [p.name for p in (tmp_path / "mix" / "processed_dataset").iterdir()] == ["k.pkl"]
    expected = [(flat(row, "input_ids"), flat(row, "loss_mask")) for row in written]
    assert ids_and_masks(all_rows(tmp_path / "mix")) == expected
    default = [{"role": "system", "content": "You are a helpful assistant."}, *TALKS[0]]
    assert sorted(recovered(tmp_path / "mix", tmp_path / "o.jsonl"), key=len) == [default, TALKS[1]]
    (container,) = inspect(tmp_path / "mix", processes=1).containers
    assert container["mask"]["convention"] == "end of turn included"


def test_speculators_prepares_growing_prefixes(tmp_path, monkeypatch):
    """`build_speculator_training_dataset`, its call to a vLLM server for the template replaced by the tokenizer's own."""
    prepare = library("speculators.data_generation.preprocessing")
    datasets = library("datasets")
    tokenizer = fast_tokenizer(tmp_path / "mix" / "tokenizer")

    def render(server, messages, *, add_generation_prompt, truncate_prompt_tokens, **_):
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
        return ids[:truncate_prompt_tokens]

    monkeypatch.setattr(prepare, "render_conversation", render)
    rows = datasets.Dataset.from_list(
        [{"conversations": [{"from": m["role"], "value": m["content"]} for m in c]} for c in TALKS]
    )
    written = prepare.build_speculator_training_dataset(
        rows, tokenizer, max_length=512, num_proc=1, render_endpoint="http://none.invalid"
    )
    written.save_to_disk(str(tmp_path / "mix" / "prepared"))
    counts = library("speculators.train.vocab_mapping")
    counts.save_token_frequency_distribution(written, tmp_path / "mix" / "prepared" / "token_freq.pt")
    expected = [(flat(row, "input_ids"), flat(row, "loss_mask")) for row in written]
    tree = find_shards(tmp_path / "mix")
    records = [r for shard in tree.shards if shard.format != "torch" for r in read(tree.root, shard)]
    assert ids_and_masks(records) == expected
    assert recovered(tmp_path / "mix", tmp_path / "o.jsonl") == [TALKS[0], TALKS[1][:3], TALKS[1]]


@pytest.mark.parametrize("packed", [False, True])
def test_llamafactory_prepares_rows_and_packs_them(packed, tmp_path, monkeypatch):
    """`get_dataset` with `tokenized_path`, with and without `neat_packing`."""
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")  # of its pins; what it writes is what is asked here
    data, hparams = library("llamafactory.data"), library("llamafactory.hparams")
    datasets, transformers = library("datasets"), library("transformers")
    tokenizer = fast_tokenizer(tmp_path / "mix" / "tokenizer")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.json").write_text(json.dumps([{"messages": c} for c in TALKS]))
    tags = {f"{role}_tag": role for role in ("role", "content", "user", "assistant", "system")}
    described = {"file_name": "a.json", "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags}
    (source / "dataset_info.json").write_text(json.dumps({"a": described}))
    where = str(tmp_path / "mix" / "prepared")
    arguments = hparams.DataArguments(
        dataset="a", dataset_dir=str(source), template="chatml", cutoff_len=512, tokenized_path=where, packing=packed,
        neat_packing=packed, overwrite_cache=True,
    )  # fmt: skip
    template = data.get_template_and_fix_tokenizer(tokenizer, arguments)
    training = transformers.Seq2SeqTrainingArguments(output_dir=str(tmp_path / "o"), do_train=True, use_cpu=True)
    model = hparams.ModelArguments(model_name_or_path=str(tmp_path / "mix" / "tokenizer"))
    with contextlib.suppress(SystemExit):  # of some versions: what is written is for the next run
        data.get_dataset(template, model, arguments, training, stage="sft", tokenizer=tokenizer)
    written = datasets.load_from_disk(where)["train"]
    records = all_rows(tmp_path / "mix")
    if packed:
        assert len(written) == 1
        ids = [i for r in records for i in r.ids[r.attention].tolist()]
        whole = sum(map(bool, written[0]["attention_mask"]))
        assert ids == written[0]["input_ids"][:whole]
    else:
        assert ids_and_masks(records) == [(flat(row, "input_ids"), supervised(row)) for row in written]
    got = recovered(tmp_path / "mix", tmp_path / "o.jsonl")
    assert sorted(got, key=len) == TALKS


def test_axolotl_prepares_rows(tmp_path):
    """Its chat template strategy, its tokenizing of a data set, and how it saves what is prepared."""
    strategies = library("axolotl.prompt_strategies.chat_template")
    wrap = library("axolotl.datasets").wrap_dataset_for_tokenized_prompt
    save = library("axolotl.utils.data.shared").save_preprocessed_dataset
    settings = library("axolotl.utils.dict").DictDefault
    datasets = library("datasets")
    tokenizer = fast_tokenizer(tmp_path / "mix" / "tokenizer")
    names = {"role": "role", "content": "content"}
    prompter = strategies.ChatTemplatePrompter(tokenizer, CHATML, message_property_mappings=names)
    strategy = strategies.ChatTemplateStrategy(
        prompter,
        tokenizer=tokenizer,
        train_on_inputs=False,
        sequence_len=512,
        roles_to_train=["assistant"],
        train_on_eos="turn",
    )
    prepared = wrap(strategy, datasets.Dataset.from_list([{"messages": c} for c in TALKS]))
    where = str(tmp_path / "mix" / "last_run_prepared")
    save(settings(dataset_prepared_path=where, is_preprocess=True, dataset_processes=1), prepared, "0123", "train")
    expected = [(flat(row, "input_ids"), supervised(row)) for row in prepared]
    assert ids_and_masks(all_rows(tmp_path / "mix")) == expected
    assert recovered(tmp_path / "mix", tmp_path / "o.jsonl") == TALKS


MISTRAL_FILES = [
    ("v3", "mistral_instruct_tokenizer_240323.model.v3"),
    ("v7", "mistral_instruct_tokenizer_241114.model.v7"),
    ("v3", "tekken_240718.json"),
]


@pytest.mark.parametrize(("version", "file"), MISTRAL_FILES)
def test_conversations_that_mistral_encodes(version, file, tmp_path):
    """Calls with their ids, results, and declared tools before the last question, as `mistral-common` writes them."""
    mistral = library("mistral_common.tokens.tokenizers.mistral").MistralTokenizer
    request = library("mistral_common.protocol.instruct.request").ChatCompletionRequest
    folder = Path(importlib.import_module("mistral_common").__file__).parent / "data"
    call = {"id": "VvvODy9mT", "type": "function", "function": {"name": "ls", "arguments": '{"p": "."}'}}
    tool = {"type": "function", "function": {"name": "ls", "description": "List.", "parameters": {"type": "object"}}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a.py", "tool_call_id": "VvvODy9mT"},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": "More 你好"},
    ]
    encoded = getattr(mistral, version)(**({"is_tekken": True} if "tekken" in file else {}))
    ids = encoded.encode_chat_completion(request.model_validate({"messages": messages, "tools": [tool]})).tokens
    target = tmp_path / "mix" / ("tekken.json" if "tekken" in file else "tokenizer.model")
    target.parent.mkdir()
    target.write_bytes((folder / file).read_bytes())
    (tmp_path / "mix" / "a.jsonl").write_text((json.dumps({"input_ids": ids}) + "\n") * 8)
    detokenize(tmp_path / "mix", tmp_path / "o.jsonl", processes=1)
    row = json.loads((tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert row["messages"] == messages
    assert row["tools"] == [tool]
