"""What two models must share: the cases of real families, and a real mismatch; and tokens as texts."""

import pytest

from lm_eval_takeover.errors import VocabularyError
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.pair.vocabulary import Vocabulary, share


def vocabulary(names, size=None, added=()):
    return Vocabulary(size or len(names), dict(enumerate(names)), frozenset(added))


WORDS = ["a", "b", "c", "d"]


def test_padded_sizes_share_the_smaller_part():
    """Qwen2.5 pads to 151,936 or 152,064 by model size."""
    shared = share(vocabulary(WORDS, 8), vocabulary(WORDS, 10))
    assert (shared.size, shared.renamed) == (8, ())
    assert share(vocabulary(WORDS, 10), vocabulary(WORDS, 8)) == shared


def test_two_formats_may_spell_the_same_tokens_in_two_ways():
    """Byte-level names, those of sentencepiece, and plain texts."""
    byte_level = vocabulary(["\u0120the", "\u010a", "\u00c3\u00a9", "a"])
    sentencepiece = vocabulary(["\u2581the", "<0x0A>", "\u00e9", "a"])
    plain = vocabulary([" the", "\n", "\u00e9", "a"])
    for one, other in ((byte_level, sentencepiece), (byte_level, plain), (plain, sentencepiece)):
        assert share(one, other).renamed == share(other, one).renamed == ()
    with pytest.raises(VocabularyError, match="1 of 4 entries differ"):
        share(byte_level, vocabulary(["the", "<0x0A>", "\u00e9", "a"]))


def test_renamed_special_tokens_are_allowed_and_listed():
    """Llama-3.1-8B and DeepSeek-R1-Distill-Llama-8B: reserved places became <think> and chat marks."""
    base = vocabulary([*WORDS, "<|reserved_0|>", "<|reserved_1|>"], added=(4, 5))
    guide = vocabulary([*WORDS, "<think>", "<|reserved_1|>"], added=(4, 5))
    assert share(base, guide).renamed == ((4, "<|reserved_0|>", "<think>"),)


def test_an_added_token_on_a_padded_place_is_allowed():
    """Qwen2.5 has no name where Qwen3 has <think>."""
    guide = vocabulary([*WORDS, "<think>"], 8, added=(4,))
    assert share(vocabulary(WORDS, 8), guide).renamed == ((4, None, "<think>"),)


@pytest.mark.parametrize(
    "guide",
    [
        vocabulary(["a", "c", "b", "d"]),
        vocabulary(["a", "b", "c", "e"]),
        vocabulary(["a", "b", "c"], 4),
        vocabulary(["a", "b", "c", "<x>"], added=(3,)),  # an ordinary token of the base is not a special one
    ],
)
def test_a_real_mismatch_shows_the_first_differing_entries(guide):
    told = r"do not share a vocabulary: \d of 4 entries differ, first id \d: base '."
    with pytest.raises(VocabularyError, match=told):
        share(vocabulary(WORDS), guide)


def test_many_differences_are_counted_not_listed():
    one, other = (vocabulary([f"{letter}{i}" for i in range(100)]) for letter in "xy")
    with pytest.raises(VocabularyError, match=r"100 of 100 entries differ, .* and 95 more"):
        share(one, other)


def test_digest_tells_vocabularies_apart():
    one, same = share(vocabulary(WORDS, 8), vocabulary(WORDS, 9)), share(vocabulary(WORDS, 9), vocabulary(WORDS, 8))
    other = share(vocabulary(["a", "b", "c", "x"], 8), vocabulary(["a", "b", "c", "x"], 8))
    assert one.digest == same.digest != other.digest


def test_characters_of_several_tokens_stay_whole():
    class Bytes:
        parts = (b"a", "é".encode()[:1], "é".encode()[1:], b"b")

        def decode(self, tokens, **_):
            return b"".join(self.parts[token] for token in tokens).decode(errors="replace")

        def convert_ids_to_tokens(self, token):
            return "x"

    pieces = Pieces(Bytes())
    assert pieces.split([0, 1, 2, 3]) == ["a", "", "é", "b"]
    assert pieces.split([0, 1]) == ["a", "\ufffd"]
    assert pieces.name(2) == "\ufffd"
