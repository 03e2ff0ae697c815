"""Tokens as texts."""

from lm_eval_takeover.pair.pieces import Pieces


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
