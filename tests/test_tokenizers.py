"""Tables, specials and encoders: from files as they are found in the field, never from the network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_tokenizers as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from promptkit.encoders import CHUNK, PATTERNS, RUN, RankEncoder, split_long
from promptkit.errors import InputError, UsageError
from promptkit.tokenizer_files import RankFile, parse_ranks
from promptkit.tokenizers import Tokenizer, find_tokenizer, load_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "tokenizers").is_dir(), reason="../shared/tokenizers is not there")


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(tiny.write_kimi(tmp_path_factory.mktemp("kimi")))


def byte_level_json(added: list[dict] | None = None) -> dict:
    """A tokenizer.json in the byte-level form, with one merge."""
    from promptkit.tokenizer_files import _BYTE_OF_CHAR

    vocab = {c: i for i, c in enumerate(sorted(_BYTE_OF_CHAR))}
    vocab["Ġt"] = 256
    return {
        "version": "1.0",
        "added_tokens": added if added is not None else [
            {"id": 257, "content": "<|eot_id|>", "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "vocab": vocab,
                  "merges": ["Ġ t"]},
    }  # fmt: skip


# ---- tables


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_ordinary_text_comes_back_and_holds_no_special_id(kimi: Tokenizer, text: str) -> None:
    ids = kimi.encode(text)
    assert kimi.decode(ids) == text
    assert not set(ids.tolist()) & set(kimi.specials.values())


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
@settings(max_examples=60, deadline=None)
def test_any_id_has_bytes_and_an_end(kimi: Tokenizer, numbers: list[int]) -> None:
    ids = np.array(numbers, np.int64)
    data, ends = kimi.spell(ids)
    assert data == b"".join(kimi.token(i) for i in numbers)
    assert np.diff(ends, prepend=0).tolist() == [len(kimi.token(i)) for i in numbers]
    assert (
        kimi.known(ids).tolist() == [i < 284 or 1000 <= i <= 1255 for i in numbers]
        if min(numbers, default=0) >= 0
        else True
    )


def test_a_quoted_special_token_stays_text(kimi: Tokenizer) -> None:
    assert 1002 not in kimi.encode("write <|im_end|> please")
    assert 1002 in kimi.encode_rendered("write <|im_end|> please")
    assert kimi.decode(kimi.encode_rendered("a<|im_end|>b")) == "a<|im_end|>b"


def test_ids_outside_the_table_are_shown_and_known_is_false(kimi: Tokenizer) -> None:
    ids = np.array([0, 500, 99_999, -1])
    assert kimi.decode(ids) == "!<|unknown_id_500|><|unknown_id_99999|><|unknown_id_-1|>"
    assert kimi.known(ids).tolist() == [True, False, False, False]


def test_unnamed_ids_of_the_kimi_block_are_reserved_tokens(kimi: Tokenizer) -> None:
    assert kimi.decode(np.array([1005])) == "<|reserved_token_1005|>"
    assert len(kimi.specials) == 256


def test_a_half_character_is_joined_before_it_is_decoded(kimi: Tokenizer) -> None:
    ids = np.concatenate([kimi.encode("日"), kimi.encode("本")])
    assert len(ids) == 6
    assert kimi.decode(ids) == "日本"


def test_long_rows_are_spelled_in_parts(kimi: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = kimi.encode("the user is in the system " * 50)
    whole = kimi.spell(ids)
    monkeypatch.setattr("promptkit.tokenizers.SPELLED_IDS", 7)
    parts = kimi.spell(ids)
    assert parts[0] == whole[0]
    assert (parts[1] == whole[1]).all()


def test_pad_and_end_come_from_the_config(kimi: Tokenizer) -> None:
    assert (kimi.pad, kimi.eos, kimi.bos) == (1255, 1001, None)


# ---- saving, identity


@pytest.mark.parametrize("write", [tiny.write_kimi, tiny.write_chatml])
def test_a_saved_tokenizer_is_equal_and_its_bytes_are_the_same(write, tmp_path: Path) -> None:
    first = load_tokenizer(write(tmp_path / "a"))
    first.save(tmp_path / "b")
    second = load_tokenizer(tmp_path / "b")
    second.save(tmp_path / "c")
    assert (second.sha256, second.name, second.specials, second.pad) == (
        first.sha256,
        first.name,
        first.specials,
        first.pad,
    )
    files = sorted(p.name for p in (tmp_path / "b").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "c").iterdir())
    assert all((tmp_path / "b" / f).read_bytes() == (tmp_path / "c" / f).read_bytes() for f in files)
    assert (second.encode("the user!!!!") == first.encode("the user!!!!")).all()


def test_other_special_ids_are_another_tokenizer(tmp_path: Path) -> None:
    a = load_tokenizer(tiny.write_tiktoken(tmp_path / "a", tiny.CHATML))
    b = load_tokenizer(tiny.write_tiktoken(tmp_path / "b", {**tiny.CHATML, "<think>": 608, "</think>": 607}))
    assert a.sha256 != b.sha256


def test_a_tokenizer_pickles_without_its_encoder(kimi: Tokenizer) -> None:
    kimi.encode("built")
    again = pickle.loads(pickle.dumps(kimi))
    assert again.sha256 == kimi.sha256
    assert (again.encode("the user") == kimi.encode("the user")).all()


def test_threads_change_nothing(kimi: Tokenizer) -> None:
    texts = [f"the user {i} is testing" for i in range(50)]
    assert [x.tolist() for x in kimi.encode_batch(texts, threads=4)] == [x.tolist() for x in kimi.encode_batch(texts)]


# ---- long text


@pytest.mark.parametrize("unit", ["a", " ", "\n", "=-", "語", "ab1"])
def test_100k_characters_without_a_break_take_no_long_time(kimi: Tokenizer, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began = time.process_time()
    ids = kimi.encode(text)
    assert time.process_time() - began < 5
    assert kimi.decode(ids) == text


@given(st.lists(st.sampled_from(["x" * 24_999, "y" * 25_001, " ", "\n" * 30_000, "ab c"]), max_size=6))
@settings(max_examples=30, deadline=None)
def test_split_long_loses_nothing_and_bounds_every_run(parts: list[str]) -> None:
    text = "".join(parts)
    pieces = list(split_long(text))
    assert "".join(pieces) == text
    assert all(len(p) <= CHUNK for p in pieces)
    assert all(len(run) <= RUN for p in pieces for run in p.split())


def test_short_text_is_one_piece() -> None:
    assert list(split_long("a b")) == ["a b"]
    assert list(split_long("")) == [""]


# ---- the patterns


@pytest.mark.parametrize(
    ("family", "text", "pieces"),
    [
        ("kimi", "日本語abc 12345", ["日本語", "abc", " ", "123", "45"]),
        ("kimi", "HelloWorld don't", ["Hello", "World", " don't"]),
        ("qwen", "HelloWorld don't 12", ["HelloWorld", " don", "'t", " ", "1", "2"]),
        ("qwen", "हिन्दी", ["ह", "िन", "्द", "ी"]),  # a vowel sign is no letter there
        ("qwen3.5", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("cl100k", "x 1234\n\n y", ["x", " ", "123", "4", "\n\n", " y"]),
        ("o200k", "a/b\n", ["a", "/b", "\n"]),
        ("r50k", "Hi there  you", ["Hi", " there", " ", " you"]),
    ],
)
def test_patterns_cut_text_as_their_families_do(family: str, text: str, pieces: list[str]) -> None:
    """Every piece is made one token, so that the ids show the cuts."""
    ranks = {bytes([b]): b for b in range(256)}
    for piece in pieces:  # a chain of prefixes, so that merges reach the whole piece
        data = piece.encode()
        for i in range(2, len(data) + 1):
            ranks.setdefault(data[:i], len(ranks))
    names = {i: t for t, i in ranks.items()}
    assert family in PATTERNS
    assert [names[i].decode("utf-8", "replace") for i in RankEncoder(ranks, family).encode(text).tolist()] == pieces


def test_qwen_normalises_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    qwen = load_tokenizer(tiny.write_chatml(tmp_path))
    assert qwen.decode(qwen.encode("e\u0301")) == "\u00e9"


# ---- words


def test_words_are_hashed_alike_everywhere_and_cannot_be_decoded() -> None:
    words = load_tokenizer("words")
    ids = words.encode("Say hello, 日本!")
    expected = int.from_bytes(hashlib.blake2b(b"hello", digest_size=8).digest(), "big") % 2**20
    assert len(ids) == 6  # Say, hello, comma, two characters, exclamation mark
    assert ids[1] == expected
    assert words.n_vocab == 2**20
    with pytest.raises(UsageError, match="cannot decode"):
        words.decode(ids)


@settings(max_examples=60, deadline=None)
@given(
    merges=st.lists(st.text("ab e\u00e9\u6f22!\n", min_size=2, max_size=7), max_size=40),
    texts=st.lists(
        st.one_of(st.text("ab e\u00e9\u6f22!\n", max_size=60), st.text(max_size=20)), min_size=1, max_size=5
    ),
    pattern=st.sampled_from(["kimi", "qwen", "cl100k"]),
)
def test_few_texts_are_encoded_with_the_tokens_they_can_hold_as_with_all(
    tmp_path_factory: pytest.TempPathFactory, merges: list[str], texts: list[str], pattern: str
) -> None:
    table = tiny.ranks()
    for merge in merges:
        table.setdefault(merge.encode(), len(table) + 3)  # with holes
    folder = tmp_path_factory.mktemp("saved")
    Tokenizer({r: t for t, r in table.items()}, tiny.KIMI, name="x", encoder=RankEncoder(table, pattern)).save(folder)
    few, whole = load_tokenizer(folder), load_tokenizer(folder)
    whole.encoder.ready()
    assert [i.tolist() for i in few.encode_batch(texts)] == [i.tolist() for i in whole.encode_batch(texts)]
    assert "_built" not in few.encoder.__dict__
    assert whole.encoder.ranks == table
    assert pickle.loads(pickle.dumps(few)).sha256 == whole.sha256


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=9), max_size=20, unique=True), st.data())
def test_a_rank_file_read_at_once_is_the_one_read_line_by_line(tokens: list[bytes], data: st.DataObject) -> None:
    written = b"".join(b"%s %d\n" % (base64.b64encode(t), 7 * i) for i, t in enumerate(tokens))
    if tokens and data.draw(st.booleans()):  # one byte is another
        at = data.draw(st.integers(0, len(written) - 1))
        written = (
            written[:at]
            + data.draw(st.sampled_from([b"=", b" ", b"\n", b"A", b"9", b"-", b"\xff"]))
            + written[at + 1 :]
        )
    file = RankFile.of(Path("tiktoken.model"), written)
    try:
        expected = parse_ranks(Path("tiktoken.model"), written) if written.strip() else None
    except InputError:
        expected = None
    if file is None:
        return
    spans = zip(file._starts.tolist(), file._sizes.tolist(), file._ranks.tolist(), strict=True)
    found = [(file._bytes[a : a + n].tobytes(), r) for a, n, r in spans]
    if expected is not None:
        assert found == list(expected.items())
    else:  # what the slow reading refuses although every line is well formed
        assert len({t for t, _ in found}) < len(found)


def test_words_save_and_load(tmp_path: Path) -> None:
    load_tokenizer("words").save(tmp_path)
    assert load_tokenizer(tmp_path).sha256 == load_tokenizer("words").sha256


# ---- files in the field


def test_a_flattened_link_is_named(tmp_path: Path) -> None:
    tiny.write_kimi(tmp_path)
    (tmp_path / "tiktoken.model").write_text("../kimi_format/tiktoken.model")
    with pytest.raises(
        InputError, match=r"'\.\./kimi_format/tiktoken\.model'.*symbolic link that was flattened by a copy"
    ):
        load_tokenizer(tmp_path)


@needs_shared
def test_the_shared_qwen_folder_is_such_a_link() -> None:
    if (SHARED / "tokenizers/qwen/tiktoken.model").stat().st_size > 1000:
        pytest.skip("the link is whole in this copy")
    with pytest.raises(InputError, match="flattened"):
        load_tokenizer(SHARED / "tokenizers/qwen")


@needs_shared
def test_the_kimi_table_with_its_holes() -> None:
    kimi = load_tokenizer(SHARED / "tokenizers/kimi_format")
    assert kimi.n_vocab == 163_840
    assert kimi.known(np.array([151_642, 151_643, 163_583, 163_584])).tolist() == [True, False, False, True]
    assert kimi.specials["<|im_middle|>"] == 163_601
    assert kimi.decode(np.array([163_589])) == "<|reserved_token_163589|>"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"IQ== 0\n@@@@ 1\n", "line 2"),
        (b"IQ== 0\nIg==\n", "line 2"),
        (b"IQ== 0\nIg== x\n", "line 2"),
        (b"IQ== 0\nIQ== 1\n", "twice"),
        (b"IQ== 0\nIg== 0\n", "twice"),
        (b"IQ== 99999999999\n", "ranks from"),
    ],
)
def test_broken_rank_files_say_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path / "tiktoken.model")


@given(st.binary(max_size=200))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_a_tokenizer_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "tokenizer.model"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        load_tokenizer(path)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3) | st.dictionaries(
    st.sampled_from(["model", "vocab", "type", "added_tokens", "config", "content", "id", "decoder"]), x, max_size=4)))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_any_json_is_a_tokenizer_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("any") / "tokenizer.json"
    path.write_text(json.dumps({"model": value, "added_tokens": value}))
    with contextlib.suppress(InputError):
        load_tokenizer(path)


def test_a_sentencepiece_score_that_is_no_float_is_refused(tmp_path: Path) -> None:
    """Found by fuzzing: field 2 of a piece as a plain number."""
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x05\x0a\x01a\x10\x00")
    with pytest.raises(InputError, match="not a sentencepiece model"):
        load_tokenizer(tmp_path)


def test_one_huge_rank_is_refused_and_not_made_room_for(tmp_path: Path) -> None:
    """Found by fuzzing: fourteen bytes that took four seconds and hundreds of megabytes."""
    (tmp_path / "tiktoken.model").write_bytes(b"QQ== 11699139")
    with pytest.raises(InputError, match="ranks from 11699139 to 11699139, expected 0 to 1048576"):
        load_tokenizer(tmp_path)


def test_a_huge_special_id_in_tekken_is_refused(tmp_path: Path) -> None:
    config = {"default_num_special_tokens": 2, "default_vocab_size": 4, "pattern": "."}
    source = {"config": config, "vocab": [{"rank": 0, "token_bytes": "YQ=="}]}
    source["special_tokens"] = [{"token_str": "<s>", "rank": 10**12}]
    (tmp_path / "tekken.json").write_text(json.dumps(source))
    with pytest.raises(InputError, match="its ids are not in 0 to 1048576"):
        load_tokenizer(tmp_path)


def test_a_config_with_bad_ids_is_refused(tmp_path: Path) -> None:
    tiny.write_kimi(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": {"content": "<a>"}}}')
    with pytest.raises(InputError, match="added_tokens_decoder entry 'x'"):
        load_tokenizer(tmp_path)


def test_a_table_without_all_bytes_decodes_but_does_not_encode(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_bytes(b"IQ== 0\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(np.array([0, 0])) == "!!"
    with pytest.raises(InputError, match="255 of the 256 single bytes"):
        tokenizer.encode("!")


def test_a_rank_file_alone_says_that_no_special_token_is_known(tmp_path: Path) -> None:
    tiny.write_kimi(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert "no special token is known" in load_tokenizer(tmp_path).notes[0]


@pytest.mark.parametrize(
    ("n_ranks", "model", "pattern", "last", "n_vocab"),
    [
        (163_584, "Kimi K2", "kimi", ("<|im_end|>", 163_586), 163_840),
        (151_643, "Qwen3", "qwen", ("</think>", 151_668), 151_669),
        (248_044, "Qwen3.5", "qwen3.5", ("</think>", 248_069), 248_077),
    ],
)
def test_a_rank_file_alone_gets_the_ids_of_its_family_and_says_so(
    tmp_path: Path, n_ranks: int, model: str, pattern: str, last: tuple[str, int], n_vocab: int
) -> None:
    table = tiny.ranks()
    for i in range(len(table), n_ranks):
        table[b"~%d" % i] = i
    lines = b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in table.items())
    (tmp_path / "tiktoken.model").write_bytes(lines)
    tokenizer = load_tokenizer(tmp_path / "tiktoken.model")
    assert tokenizer.specials[last[0]] == last[1]
    assert tokenizer.n_vocab == n_vocab
    assert tokenizer.encoder.identity == ("ranks", pattern)
    assert f"special ids of {model} are assumed" in tokenizer.notes[0]


# ---- tokenizer.json, sentencepiece, tekken


def test_byte_level_json_decodes_like_the_library(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library

    source = byte_level_json()
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    ours, library = load_tokenizer(tmp_path), Library.from_str(json.dumps(source))
    text = "say the thé 日本 — ok\n"
    ids = ours.encode(text)
    assert ids.tolist() == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids.tolist()) == text
    assert ours.name == "llama3"


def test_json_encoder_produces_no_added_token(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_json()))
    tokenizer = load_tokenizer(tmp_path)
    assert 257 not in tokenizer.encode("a<|eot_id|>b")
    assert 257 in tokenizer.encode_rendered("a<|eot_id|>b")


def test_json_saves_and_loads(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_json()))
    first = load_tokenizer(tmp_path)
    first.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").sha256 == first.sha256


def test_runs_of_spaces_that_were_added_as_tokens_are_text(tmp_path: Path) -> None:
    """Gemma's: "▁▁" and a newline are added tokens, not special, and its decoder makes spaces of them too."""
    from tokenizers import Tokenizer as Library

    added = [
        {"id": i, "content": text, "special": special, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, text, special in ((0, "<bos>", True), (1, "\n\n", False), (2, "\u2581\u2581", False))
    ]  # fmt: skip
    vocab = {"<bos>": 0, "\n\n": 1, "\u2581\u2581": 2, "a": 3, "\u2581": 4, "\n": 5}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    source = {
        "version": "1.0", "added_tokens": added, "normalizer": space, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "fuse_unk": False, "byte_fallback": False},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    decoder = {str(t["id"]): t for t in added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    tokenizer, library = load_tokenizer(tmp_path), Library.from_str(json.dumps(source))
    assert tokenizer.specials == {"<bos>": 0}
    ids = [0, 3, 2, 2, 4, 3, 1, 5, 3]
    assert tokenizer.decode(np.array(ids)) == library.decode(ids, skip_special_tokens=False) == "<bos>a     a\n\n\na"
    assert tokenizer.encode("a\n\na").tolist() == library.encode("a\n\na").ids == [3, 1, 3]


def test_word_pieces_are_refused(tmp_path: Path) -> None:
    source = {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    with pytest.raises(InputError, match="does not keep the text's spaces"):
        load_tokenizer(tmp_path)


def sentencepiece(model_type: int) -> bytes:
    """A sentencepiece model of a few pieces: field 1 = piece, field 2 = trainer."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256)),
              ("▁", -1.0, 1), ("h", -2.0, 1), ("i", -3.0, 1), ("▁h", -0.4, 1), ("▁hi", -0.5, 1)]  # fmt: skip
    out = b""
    for text, score, kind in pieces:
        inner = field(1, text.encode()) + b"\x15" + np.float32(score).tobytes() + b"\x18" + bytes([kind])
        out += field(1, inner)
    return out + field(2, bytes([3 << 3, model_type]))


@pytest.mark.parametrize("model_type", [1, 2])
def test_sentencepiece_is_walked_without_its_library(tmp_path: Path, model_type: int) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(model_type))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.specials == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert tokenizer.encode(" hi").tolist() == [263]
    assert tokenizer.decode(tokenizer.encode(" hi é")) == " hi é"


def test_tekken_ids_follow_the_special_ones(tmp_path: Path) -> None:
    vocab = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)]
    config = {"pattern": PATTERNS["o200k"], "default_vocab_size": 276, "default_num_special_tokens": 20}
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("AB").tolist() == [85, 86]
    assert tokenizer.decode(np.array([3, 85, 4])) == "[INST]A[/INST]"


# ---- names and directories


def test_unknown_names_list_the_known_and_say_that_nothing_is_downloaded() -> None:
    with pytest.raises(UsageError, match=r"nothing is downloaded(.|\n)*did you mean 'cl100k_base'"):
        load_tokenizer("cl100k_bass")


def test_a_missing_path_is_named() -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_tokenizer("./nowhere/tiktoken.model")


def test_an_encoding_comes_from_tiktokens_cache_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=r"9b5ad71b2ce5302211f9c61530b329a4922fc6a4(.|\n)*nothing is downloaded"):
        load_tokenizer("cl100k_base")
    (tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4").write_bytes(b"IQ== 0\n")
    with pytest.raises(InputError, match="not the published one"):
        load_tokenizer("cl100k_base")
    monkeypatch.setattr(
        "promptkit.tokenizers._sha256", lambda data: "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
    )
    assert load_tokenizer("cl100k_base").specials["<|endoftext|>"] == 100_257
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    with pytest.raises(UsageError, match="switched off"):
        load_tokenizer("cl100k_base")


def test_find_prefers_what_is_given_then_the_nearest_directory(tmp_path: Path) -> None:
    near = tiny.write_kimi(tmp_path / "root" / "near")
    tiny.write_chatml(tmp_path / "root" / "far")
    root = tmp_path / "root"
    assert find_tokenizer(root, ["near", "far"], None).name == "kimi"
    assert find_tokenizer(root, ["near"], str(root / "far")).name == "qwen"
    assert find_tokenizer(root, [], None) is None
    (near / "tiktoken.model").write_text("../elsewhere/tiktoken.model")
    assert find_tokenizer(root, ["near", "far"], None).name == "qwen"
    with pytest.raises(InputError, match="flattened"):
        find_tokenizer(root, ["near"], None)


@pytest.mark.parametrize("line", [b"IQ 2", b"IQ= 2", b"I Q== 2", b" 2", b"IQ==", b"!Q== 2", b"IQ== x", b"=IQ= 2"])
def test_the_line_of_a_rank_file_that_is_damaged_is_named(line: bytes) -> None:
    data = b"\n".join([b"Ig==\t0", b"", b"  Iw==  1\r", line, b"JA== 3"])
    with pytest.raises(InputError, match="line 4 is not base64 and a rank"):
        parse_ranks(Path("tiktoken.model"), data)
