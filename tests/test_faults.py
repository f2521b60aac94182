"""The faults that a run may meet, and the test that holds the promised behaviour for each.

The table is a map: a row names a fault and a test as `file::function`; a row that names nothing would fail here. What no
other test file was the place for is tested below.
"""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shard_files
from conftest import ROOT, Command

from promptkit import readers
from promptkit.errors import InputError
from promptkit.pipeline import inspect

# fmt: off
FAULTS = {
    "input folder empty": "test_pipeline::test_a_missing_directory_and_an_empty_one_are_told_apart",
    "folder missing, or no folder": "test_readers::test_a_missing_or_special_root_is_a_usage_error",
    "shards without a row": "test_faults::test_shards_without_a_row_are_an_error_that_lists_them",
    "no row that can be used": "test_pipeline::test_where_no_row_could_be_read_the_error_says_what_was_wrong_with_each_file",
    "cut gz": "test_readers_json::test_rows_before_damage_are_kept",
    "cut zst": "test_readers_json::test_rows_before_damage_are_kept",
    "cut inside a JSON row": "test_readers_json::test_a_bad_row_costs_itself_and_says_why",
    "cut JSON array": "test_readers_json::test_the_rest_of_a_cut_array_is_a_fault",
    "cut Parquet": "test_readers_tables::test_cut_and_encrypted_parquet_say_so",
    "cut Arrow": "test_readers_tables::test_batches_before_a_cut_are_kept",
    "any container cut": "test_readers::test_every_format_reports_a_cut_file_and_never_raises",
    "flipped bit in Parquet with page checksums": "test_faults::test_no_flipped_bit_of_a_checksummed_page_gives_another_row",
    "damaged row group": "test_readers_tables::test_a_damaged_row_group_costs_its_own_rows",
    "footer or header that claims gigabytes": "test_readers_tables::test_headers_that_claim_gigabytes_are_refused_before_they_are_read",
    "bad gz checksum, garbage behind it": "test_faults::test_gzip_with_a_wrong_checksum_or_garbage_behind_it_is_failed",
    "two gz members, several frames": "test_readers_json::test_members_and_frames_in_a_row_are_one_file",
    "gz and zst bomb": "test_readers_json::test_a_refusal_stays_small",
    "ZIP bomb, overlapping entries": "test_readers_tokens::test_entries_of_a_zip_that_overlap_or_hide_pickles_are_refused",
    "tar bomb": "test_readers_tokens::test_a_packed_tar_that_is_a_bomb_is_refused_in_little_memory",
    "Parquet bomb": "test_readers_tables::test_parquet_bombs_are_refused",
    "Arrow bomb": "test_readers_tables::test_compressed_arrow_is_read_and_bombs_are_refused",
    "npz bomb": "test_readers_tokens::test_a_bomb_in_a_zip_of_arrays_is_refused_in_little_memory",
    "line of a gigabyte": "test_readers_json::test_a_refusal_stays_small",
    "line above the limit": "test_readers_json::test_a_line_over_the_limit_costs_itself",
    "100,000 brackets deep": "test_readers_json::test_a_bad_row_costs_itself_and_says_why",
    "NaN, Infinity, huge integer, key twice": "test_readers_json::test_a_bad_row_costs_itself_and_says_why",
    "key twice anywhere": "test_readers_json::test_a_key_twice_is_always_found",
    "UTF-16": "test_readers_json::test_utf16_is_refused_with_the_remedy",
    "latin-1, mixed encodings, byte order mark": "test_faults::test_encodings",
    "lone surrogate, NUL, U+2028, private use": "test_faults::test_odd_characters_are_kept_and_surrogates_replaced",
    "schema that changes": "test_readers_json::test_a_schema_that_changes_costs_the_rows_without_known_fields",
    "wrong tokenizer": "test_templates::test_a_wrong_tokenizer_is_refused_with_its_evidence",
    "ids outside the table": "test_pipeline::test_a_file_full_of_foreign_ids_is_failed_not_guessed",
    "a few ids outside the table": "test_templates::test_ids_outside_the_table_are_shown_and_counted",
    "ids that are floats, bools, null": "test_readers_json::test_a_bad_row_costs_itself_and_says_why",
    "no tokenizer": "test_pipeline::test_ids_without_a_tokenizer_name_the_option",
    "flattened link as tokenizer": "test_tokenizers::test_a_flattened_link_is_named",
    "stream without separators": "test_readers_tokens::test_a_long_stream_without_an_end_is_cut_and_says_so",
    "packed rows": "test_readers_tokens::test_where_conversations_begin_in_a_packed_row",
    "width of ids unknown": "test_readers_tokens::test_a_width_is_never_guessed",
    "pickle that runs code": "test_readers_torch::test_a_poisoned_pickle_is_named_by_the_walk",
    "torch file that runs code": "test_readers_torch::test_a_refused_global_is_named_and_not_run",
    "pickle that holds itself": "test_readers_torch::test_a_value_that_holds_itself_over_and_over_is_refused",
    "npy of objects, hostile header": "test_readers_tokens::test_hostile_numpy_headers_are_refused",
    "MDS column that is a pickle": "test_readers_tokens::test_mds_columns_that_are_pickles_are_refused_and_others_ignored",
    "LitData: pickle, encryption, packed by sample": "test_readers_tokens::test_litdata_that_cannot_be_read_safely_is_refused",
    "Brotli, Snappy, LZ4": "test_readers::test_compressions_that_are_not_read_are_named",
    "other containers": "test_readers::test_other_containers_are_named_and_not_opened",
    "offsets that lie (safetensors)": "test_readers_tables::test_bad_safetensors_are_faults",
    "offsets that lie (Megatron)": "test_readers_tokens::test_a_megatron_index_that_lies_is_refused",
    "offsets that lie (datatrove)": "test_readers_tokens::test_a_datatrove_index_that_lies_is_refused",
    "offsets that lie (Dolma)": "test_readers_tokens::test_a_list_of_documents_that_lies_is_refused",
    "offsets that lie (MDS)": "test_readers_tokens::test_an_mds_shard_that_lies_is_refused",
    "names that are paths in an index": "test_readers_tokens::test_an_index_that_names_missing_files_or_paths_is_said",
    "names that are paths in state.json": "test_readers::test_save_to_disk_reads_what_state_json_names",
    "names that are paths in a tar": "test_readers_tokens::test_names_inside_a_tar_lead_nowhere",
    "tar with links, devices, damage": "test_readers_tokens::test_damaged_and_dangerous_tars_are_refused",
    "tar with a million members, one name twice": "test_faults::test_a_tar_of_very_many_members_is_read_in_little_memory",
    "link loop, link out, FIFO, socket, device": "test_faults::test_links_and_special_files_are_named_and_never_opened",
    "file name of bytes, newline, escape": "test_readers::test_names_that_are_not_utf8_can_be_shown_and_read",
    "no permission": "test_readers::test_a_permission_is_a_fault_and_not_an_end",
    "file that changes or vanishes": "test_readers::test_a_file_that_vanishes_or_changes_is_a_fault",
    "error of the disk while reading": "test_faults::test_an_error_of_the_disk_is_tried_again_and_then_named",
    "reader's process killed": "test_pipeline::test_a_shard_that_ends_or_stops_its_reader_costs_only_itself",
    "reader's process killed once": "test_pipeline::test_a_worker_that_died_by_chance_costs_nothing",
    "reader stands still": "test_pipeline::test_a_shard_that_ends_or_stops_its_reader_costs_only_itself",
    "Ray's worker killed once": "test_engines::test_a_worker_killed_in_the_middle_costs_time_only",
    "Ray's worker killed always": "test_engines::test_a_unit_that_always_dies_is_accounted_for",
    "Ctrl-C, SIGTERM": "test_interrupt::test_a_stopped_build_leaves_what_was_there_and_goes_on",
    "library that ends the process": "test_pipeline::test_a_killer_among_the_shards_is_survived_by_the_command",
    "unfinished writes, locks, empty files": "test_readers::test_everything_that_is_no_shard_is_in_the_account",
    "growing prefixes": "test_pipeline::test_growing_prefixes_of_neighbours_count_once_in_the_mix_and_stay_in_detokenize",
    "padding of zeros": "test_templates::test_zeros_behind_a_closed_turn_are_padding",
    "more lost than allowed, --strict": "test_pipeline::test_strict_writes_nothing_and_keeps_what_was_there",
    "YAML tags, keys twice": "test_candidates::test_bad_yaml_is_a_usage_error_with_the_place",
    "YAML bomb": "test_candidates::test_yaml_bombs_are_refused_within_two_seconds_and_200_mb",
    "no prompts": "test_candidates::test_no_prompts_is_an_input_error",
    "disk full": "test_writing::test_full_disk_message_has_path_needed_and_free_bytes",
    "any failing call while writing": "test_writing::test_every_failing_call_leaves_the_old_directory_or_the_new_one",
    "two builds at once": "test_writing::test_second_writer_is_refused_and_told_who_holds",
    "flipped bit in a pack": "test_pack::test_any_flipped_bit_is_found",
    "file of a pack missing, extra": "test_pack::test_a_missing_file_is_found_by_name",
    "closed pipe": "test_cli::test_closed_pipe_exits_141_without_a_traceback",
    "terminal escapes, markup": "test_cli::test_every_line_fits_eighty_columns_and_hides_nothing_dangerous",
    "hostile text in the report": "test_report::test_hostile_text_stays_text",
}
# fmt: on


def test_every_fault_of_the_table_has_its_test() -> None:
    functions: dict[str, set[str]] = {}
    for path in (ROOT / "tests").glob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions[path.stem] = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    missing = [t for t in FAULTS.values() if t.partition("::")[2] not in functions.get(t.partition("::")[0], ())]
    assert missing == []


def items(root: Path) -> list[readers.Record | readers.Fault]:
    tree = readers.find_shards(root)
    return [item for shard in tree.shards for item in readers.read(tree.root, shard)]


def texts(root: Path) -> list[str | None]:
    return [i.text for i in items(root) if isinstance(i, readers.Record)]


def test_shards_without_a_row_are_an_error_that_lists_them(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([], pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("\n\n")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(InputError) as error:
        inspect(tmp_path)
    assert all(name in error.value.hint for name in ("a.parquet", "b.jsonl", "c.json"))


def test_no_flipped_bit_of_a_checksummed_page_gives_another_row(tmp_path: Path) -> None:
    rows = [f"row {k} " + "x" * (k % 7) for k in range(40)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": rows}), path, write_page_checksum=True, compression="none", use_dictionary=False)
    good = path.read_bytes()
    start, end = 4, good.rindex(rows[-1].encode()) + len(rows[-1])
    lost = 0
    for bit in np.random.default_rng(0).choice(8 * (end - start), 120, replace=False).tolist():
        data = bytearray(good)
        data[start + bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(data))
        found = items(tmp_path)
        got = {i.row: i.text for i in found if isinstance(i, readers.Record)}
        assert all(rows[k] == text for k, text in got.items())
        faults = [i for i in found if isinstance(i, readers.Fault)]
        assert faults or len(got) == len(rows)
        lost += bool(faults)
    assert lost > 100


def test_gzip_with_a_wrong_checksum_or_garbage_behind_it_is_failed(tmp_path: Path) -> None:
    """What a checksum speaks against is not given out; what stands whole before garbage is."""
    plain = b'{"text": "one"}\n{"text": "two"}\n'
    packer = zlib.compressobj(wbits=31)
    good = packer.compress(plain) + packer.flush()
    for data, kept in ((good[:-8] + bytes(4) + good[-4:], []), (good + b"garbage", ["one", "two"])):
        (tmp_path / "a.jsonl.gz").write_bytes(data)
        found = items(tmp_path)
        assert [i.text for i in found if isinstance(i, readers.Record)] == kept
        assert isinstance(found[-1], readers.Fault)
        assert "gzip data is damaged" in found[-1].reason


def test_encodings(tmp_path: Path) -> None:
    lines = ['{"text": "Grüße"}'.encode(), '{"text": "Grüße"}'.encode("latin-1"), b'{"text": "end"}']
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    found = items(tmp_path)
    assert [getattr(i, "text", None) for i in found] == ["Grüße", None, "end"]
    assert isinstance(found[1], readers.Fault)
    assert found[1].row == 1


def test_odd_characters_are_kept_and_surrogates_replaced(tmp_path: Path) -> None:
    text = "a\u0000b\u2028c\ue000d\x1b[31m\u202e"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n" + '{"text": "x\\ud800y"}\n')
    first, second = items(tmp_path)
    assert isinstance(first, readers.Record)
    assert first.text == text
    assert isinstance(second, readers.Record)
    assert second.text == "x\ufffdy"
    assert any("surrogate" in m for m in second.marks)


def test_a_tar_of_very_many_members_is_read_in_little_memory(tmp_path: Path) -> None:
    """Names repeat: a row ends where the next base name begins, and nothing is kept of those before."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for k in range(3000):
            info = tarfile.TarInfo(f"{k % 2:04d}.txt")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"row"))
    tree = readers.find_shards(tmp_path)
    n = sum(isinstance(i, readers.Record) for i in readers.read(tmp_path, tree.shards[0]))
    assert n == 3000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_links_and_special_files_are_named_and_never_opened(tmp_path: Path) -> None:
    import socket

    root = tmp_path / "mix"
    root.mkdir()
    (root / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "outside.jsonl").write_text('{"text": "secret"}\n')
    os.mkfifo(root / "fifo.jsonl")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket.jsonl"))
    (root / "loop").symlink_to(root)
    (root / "self").symlink_to("self")
    (root / "out.jsonl").symlink_to(tmp_path / "outside.jsonl")
    (root / "null.jsonl").symlink_to("/dev/zero")
    assert texts(root) == ["one"]
    account = {a.path: (a.status, a.reason) for a in readers.find_shards(root).account}
    assert account.keys() == {"fifo.jsonl", "socket.jsonl", "loop", "self", "out.jsonl", "null.jsonl"}
    assert all(status == "skipped" for status, _ in account.values())
    for name, said in (("fifo.jsonl", "FIFO"), ("socket.jsonl", "socket"), ("loop", "link to a directory"),
                       ("self", "leads nowhere"), ("out.jsonl", "out of the root"), ("null.jsonl", "out of the root")):  # fmt: skip
        assert said in account[name][1]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("when", ["3", "4", "3+", "1+"])
def test_an_error_of_the_disk_is_tried_again_and_then_named(tmp_path: Path, when: str) -> None:
    """Reads of one file fail: the Nth, or all from the Nth on. The rows come, or the file is named; never fewer rows."""
    (tmp_path / "good.jsonl").write_text('{"text": "good"}\n')
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "bad"}\n' * 50)
    program = (
        "import json, sys; from promptkit import collect\n"
        "o = collect.open_directory(sys.argv[1]); s = collect.collect(o, sample_size=1, seed=0)\n"
        "print(json.dumps([[a.path, a.status, a.rows, a.reason] for a in collect.full_account(o, s)]))\n"
    )
    inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(bad), "-e", f"inject=read:error=EIO:when={when}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*inject, sys.executable, "-c", program, tmp_path], capture_output=True, text=True, env=env)
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    account = {path: rest for path, *rest in json.loads(done.stdout)}
    assert account["good.jsonl"] == ["read", 1, ""]
    failed = ["failed", 0, f"cannot be read: {os.strerror(5)}"]
    assert account["bad.jsonl"] == (failed if when.endswith("+") else ["read", 50, ""])


def test_a_fault_of_one_file_leaves_the_exit_code_4_and_the_rest_written(
    tmp_path: Path, promptkit_command: Command
) -> None:
    (tmp_path / "mix").mkdir()
    (tmp_path / "mix" / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "mix" / "b.pkl").write_bytes(shard_files.parquet_bytes([([1, 2], [0, 1])])[:-20])
    done = promptkit_command("detokenize", tmp_path / "mix", "-o", tmp_path / "o.jsonl")
    assert done.returncode == 4
    assert "b.pkl" in done.stdout
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 1
