"""Encoding of text as token ids: by plain bytes, or by a tokenizer in a user's file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_fleet.core.errors import DataError
from gpu_fleet.data.dataset import Array

BYTES = 256


@dataclass(frozen=True)
class Encoding:
    """Conversion of text to ids, all below `vocabulary`."""

    encode: Callable[[bytes], Array]  # text to ids (n,) int64; may raise UnicodeDecodeError
    vocabulary: int
    end: int | None = None  # the id that ends a file, if the vocabulary has one


def byte_encoding(shift: int) -> Encoding:
    """Return the encoding of each byte as one token, with the first `shift` ids free; fits any text."""

    def encode(text: bytes) -> Array:
        return np.frombuffer(text, dtype=np.uint8).astype(np.int64) + shift

    return Encoding(encode, BYTES + shift)


def file_encoding(file: Path, end: str = "", *, framed: bool = False) -> Encoding:
    """Load the encoding of a tokenizer.json (https://huggingface.co/docs/tokenizers); raises DataError.

    Args:
        file: the tokenizer.json.
        end: the token that ends a file, if any.
        framed: add the tokens that the tokenizer puts around each text, such as [CLS] and [SEP].
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only where one is given

    if not file.is_file():
        raise DataError(f"--tokenizer = {str(file)!r}: is not a file; the tokenizer.json of a model is one")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower class for a broken file
        raise DataError(f"--tokenizer = {str(file)!r}: cannot be read: {error}") from error
    tokenizer.no_truncation()  # the file may cut and fill each text, as those of sentence-transformers do
    tokenizer.no_padding()

    def encode(text: bytes) -> Array:
        decoded = text.decode("utf-8-sig")  # without a byte order mark
        ids = np.asarray(tokenizer.encode(decoded, add_special_tokens=framed).ids, dtype=np.int64)
        if framed and not ids.all():
            raise DataError(
                f"--tokenizer = {str(file)!r}: makes id 0, {tokenizer.id_to_token(0)!r}, of part of a text, "
                "and 0 is padding; use a tokenizer whose id 0 only pads, as BERT's"
            )
        return ids

    if end and tokenizer.token_to_id(end) is None:
        raise DataError(f"--end-token = {end!r}: {file} has no such token")
    # not their number: a file may leave ids out
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Encoding(encode, size, tokenizer.token_to_id(end) if end else None)
