"""The shipped graph: it is WordNet, and WordNet's own format makes it again, bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.datasets import wordnet
from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.source import silent
from gatherbench.datasets.store import open_dataset
from gatherbench.datasets.wordnet.source import RELATIONS, WordnetSource, gloss_features
from tools.convert_wordnet import FEATURE_DIM, content_sha256, convert, main, split_of, word_slot

HOME = Path(next(iter(wordnet.__path__)))
SHA256 = "bc3922ffb77155bc3d6f8b3fdf4f672cf867890a760e69613ef39dfa22218b2a"

FEATURES_SHA256 = "6f1bdf249d3e357e4cf7be84365b67715299bbdf91cb285e6c0c97529e8dca8b"
#: Of the pairs below: what the neighbour is to the node, and the node to the neighbour.
KINDS = [
    [
        "hyponym",
        "inverse of derivationally related",
        "antonym",
        "similar to",
        "inverse of pertainym",
    ],
    ["hypernym", "derivationally related", "antonym", "inverse of similar to", "pertainym"],
]
SLOTS = [590, 374, 250]
PARTS = [2, 0, 0]

# Seven synsets in the format of wndb(5WN): hexadecimal counts and word numbers, a verb with frames,
# an adjective satellite, a lexical pointer (antonym), a pointer within one synset, a one-way one.
NOTICE = "  1 This software and database is being provided to you, the LICENSEE, by  \n"
FILES = {
    "noun": (
        "00001740 03 n 01 entity 0 002 ~ 00001930 n 0000 + 00001740 n 0101 | that which is  \n"
        "00001930 05 n 0b a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k 0 001 @ 00001740 n 0000"
        ' | a thing; "Things, a thing!"  \n'
    ),
    "verb": "00001740 29 v 01 breathe 0 001 + 00001930 n 0b01 02 + 02 00 + 08 00 | draw air  \n",
    "adj": (
        "00001740 00 a 01 able 0 002 ! 00002098 a 0101 & 00002312 a 0000 | having 2 arms  \n"
        "00002098 44 s 01 unable 0 001 ! 00001740 a 0101 | not  \n"
    ),
    "adv": "00001740 02 r 01 ably 0 001 \\ 00001740 a 0101 | in an able manner  \n",
}
FILES["adj"] += "00002312 00 s 01 absolute 0 000 | perfect  \n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for part, lines in FILES.items():
        (folder / f"data.{part}").write_text(NOTICE + lines)
    return folder


@pytest.fixture(scope="module")
def prepared(wordnet_root: Path) -> GraphDataset:
    return open_dataset(wordnet_root / "wordnet")


def test_the_format_is_read(database):
    arrays = convert(database)
    assert arrays["labels"].tolist() == [3, 5, 29, 0, 44, 0, 2]
    assert arrays["pointers"].tolist() == [8, 5, 1]
    low = np.repeat(np.arange(7), arrays["pair_counts"])
    pairs = list(zip(low.tolist(), arrays["pair_ends"].tolist(), strict=True))
    assert pairs == [(0, 1), (1, 2), (3, 4), (3, 5), (3, 6)]
    kinds = [[RELATIONS[kind] for kind in row] for row in arrays["pair_kinds"]]
    assert kinds == KINDS
    assert arrays["word_counts"].tolist() == [3, 3, 2, 2, 1, 1, 4]
    second = arrays["word_slots"][3:6].tolist()
    assert second == sorted(word_slot(word) for word in ("a", "thing", "things"))


def test_neither_the_words_of_a_synset_nor_its_class_are_features(database):
    before = convert(database)
    path = database / "data.noun"
    text = path.read_text().replace("01 entity 0", "01 creature 0")
    path.write_text(text.replace("00001740 03 n", "00001740 27 n"))
    after = convert(database)
    assert after["labels"][0] == 27
    after["labels"] = before["labels"]
    assert content_sha256(after) == content_sha256(before)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("00001740 03 n 01 entity 0 000 no gloss\n", "no gloss"),
        ("00001740 45 n 01 entity 0 000 | x\n", "lexicographer file 45"),
        ("00001740 03 n 01 entity 0 002 ~ 00001740 n 0000 | x\n", "not a synset line"),
        ("00001740 03 n zz entity 0 000 | x\n", "invalid literal"),
    ],
)
def test_a_bad_line_is_named(database, line, says):
    (database / "data.adv").write_text(NOTICE + line)
    with pytest.raises(ValueError, match=rf"data\.adv:2: .*{says}"):
        convert(database)


def test_a_missing_file_and_a_lost_pointer_are_named(database):
    path = database / "data.adv"
    path.write_text(path.read_text().replace("\\ 00001740 a", "\\ 00009999 a"))
    with pytest.raises(ValueError, match="a00009999, which is missing"):
        convert(database)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data\.adv: .*wordnet-base"):
        convert(database)


def test_converting_twice_gives_the_same_bytes(database, tmp_path, monkeypatch, capsys):
    made = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for path, now in zip(made, (1e9, 1.7e9), strict=True):
        monkeypatch.setattr("time.time", lambda now=now: now)
        monkeypatch.setattr("sys.argv", ["convert", str(database), str(path)])
        main()
    assert made[0].read_bytes() == made[1].read_bytes()
    assert "7 synsets, 8 pointers (5 lexical, 1 within a synset)" in capsys.readouterr().out
    with np.load(made[0]) as stored:
        assert content_sha256(stored) == content_sha256(convert(database))


def test_the_content_digest_sees_every_change(database):
    arrays = convert(database)
    digests = {content_sha256(arrays)}
    for name, array in arrays.items():
        changed = array.copy()
        changed[0] += 1
        digests.add(content_sha256({**arrays, name: changed}))
        digests.add(content_sha256({**arrays, name: array.astype(np.float64)}))
    assert len(digests) == 1 + 2 * len(arrays)


def test_the_shipped_file_is_wordnet():
    with np.load(HOME / "wordnet.npz") as shipped:
        assert content_sha256(shipped) == SHA256
        assert shipped["pointers"].tolist() == [377_592, 92_244, 19]
        assert len(shipped["labels"]) == 117_659
        assert len(shipped["pair_ends"]) == 183_789
        assert np.unique(shipped["labels"]).tolist() == list(range(45))
    assert (HOME / "wordnet.npz").stat().st_size < 2.5e6
    assert "Copyright 2006 by Princeton University" in (HOME / "LICENSE.WordNet").read_text()


def test_the_hashes_are_the_same_on_every_machine():
    assert [word_slot(word) for word in ("entity", "breathe", "a")] == SLOTS
    assert [split_of(key) for key in ("n00001740", "v00001740", "a00001740")] == PARTS


def test_prepared_as_estimated(prepared):
    spec = WordnetSource().estimate(1.0)
    assert replace(prepared.spec, relations=()) == spec
    assert prepared.features.shape == (117_659, 300)
    assert prepared.features.dtype == np.float32
    assert spec.row_bytes % 128 != 0
    assert (prepared.folder / "LICENSE.WordNet").is_file()


def test_prepared_is_undirected_and_has_no_self_loops(prepared):
    target = np.repeat(np.arange(117_659), np.diff(prepared.indptr))
    source = np.asarray(prepared.indices)
    forth = target.astype(np.int64) * 117_659 + source
    assert np.all(np.diff(forth) > 0)
    assert np.array_equal(forth, np.sort(source.astype(np.int64) * 117_659 + target))
    assert not np.any(source == target)


def test_the_split_is_a_partition_of_60_20_20(prepared):
    parts = prepared.train_ids, prepared.val_ids, prepared.test_ids
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(117_659))
    assert [len(part) for part in parts] == [70_622, 23_686, 23_351]
    for part in parts:  # each class is in each part: the rarest has 42 nodes
        assert len(np.unique(prepared.labels[part])) == 45


def test_the_features_are_the_known_bits(prepared):
    assert content_sha256({"features": np.asarray(prepared.features)}) == FEATURES_SHA256
    lengths = np.linalg.norm(prepared.features, axis=1)
    assert np.count_nonzero(lengths == 0) == 10  # all their words cancel
    assert np.allclose(lengths[lengths > 0], 1, atol=1e-6)


@settings(deadline=None)
@given(
    glosses=st.lists(
        st.lists(st.sampled_from(["a", "of", "the", "cat", "dog"]), max_size=5, unique=True),
        min_size=1,
        max_size=9,
    )
)
def test_features_sum_signed_words(glosses):
    counts = np.array([len(words) for words in glosses], np.uint16)
    slots = np.array([word_slot(w) for words in glosses for w in words], np.uint16)
    table = np.concatenate(list(gloss_features(counts, slots, silent)))
    assert table.shape == (len(glosses), FEATURE_DIM)
    for row, words in zip(table, glosses, strict=True):
        expected = np.zeros(FEATURE_DIM)
        for word in words:
            expected[word_slot(word) // 2] += -1 if word_slot(word) % 2 else 1
        length = np.sqrt((expected**2).sum())
        assert np.array_equal(row, (expected / max(length, 1)).astype(np.float32))
