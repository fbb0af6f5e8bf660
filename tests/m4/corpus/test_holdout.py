import doctest

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.m4.corpus import holdout
from examples.m4.corpus.holdout import fold, hold_out, overlap

WORDS = st.sampled_from(
    ["Red", "red", "blue,", "blue", "sky", "Sky!", "is", "was", "here", "there."]
)
ENGLISH = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
PAIRS = st.dictionaries(
    st.sampled_from(["aa", "bb", "cc"]), st.lists(st.tuples(st.sampled_from("uvwxyz"), ENGLISH))
)


def letters(text):
    return "".join(letter for letter in text.lower() if letter.isalnum())


@settings(max_examples=200, deadline=None)
@given(PAIRS, st.integers(0, 4), st.integers(0, 4))
def test_what_is_held_out_is_in_no_train_pair(pairs, dev_count, test_count):
    train, dev, test = hold_out(pairs, dev=dev_count, test=test_count, words=(2, 5))
    keys = [
        {letters(english) for some in part.values() for _, english in some}
        for part in (train, dev, test)
    ]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert len(keys[1]) <= dev_count and len(keys[2]) <= test_count
    for language, all_pairs in pairs.items():
        held = dev.get(language, []) + test.get(language, [])
        assert not {source for source, _ in held} & {source for source, _ in train[language]}
        assert all(2 <= len(english.split()) <= 5 for _, english in held)
        assert {letters(english) for _, english in held} == {
            letters(english) for _, english in all_pairs
        } & (keys[1] | keys[2])
        assert set(train[language]) | set(held) <= set(all_pairs)
    assert overlap(train, dev) == overlap(train, test) == 0


def test_strings_that_the_most_languages_have_are_held_out():
    common = [f"word{number} is said everywhere" for number in range(30)]
    pairs = {code: [(f"{code}{text}", text) for text in common] for code in ("aa", "bb", "cc")}
    pairs["dd"] = [(f"dd{number}", f"rare{number} is said here") for number in range(100)]
    _, dev, test = hold_out(pairs, dev=5, test=5)
    assert len(dev["aa"]) == len(test["cc"]) == 5
    assert (
        {english for _, english in test["aa"]}
        == {english for _, english in test["bb"]}
        <= set(common)
    )
    assert "dd" not in dev and "dd" not in test


def test_few_held_out_strings_begin_alike():
    texts = [f"Republic of country{number}" for number in range(200)] + [
        f"noun{number} is good" for number in range(200)
    ]
    _, dev, test = hold_out({"aa": [(text[::-1], text) for text in texts]}, dev=50, test=50)
    held = [english for _, english in dev["aa"] + test["aa"]]
    assert len(held) == 100
    assert sum(english.startswith("Republic of") for english in held) <= 2


def test_overlap_counts_every_train_pair_whose_english_is_held_out():
    train = {"aa": [("x", "It is here."), ("y", "No.")], "bb": [("z", "it is HERE")]}
    assert overlap(train, {"cc": [("w", "It is here!")]}) == 2


def test_folding_keeps_the_marks_that_make_a_word():
    assert fold("कि") != fold("की")
    assert fold("\u200bÉté, été!") == fold("été-ÉTÉ")


def test_the_documentation_runs():
    assert doctest.testmod(holdout).failed == 0
