"""The node `tokenization.tokenizer`: train or import a tokenizer, and write it as a Hugging Face directory.

Its folder loads with `AutoTokenizer.from_pretrained` and gives the ids that the shards hold. `info` names what later nodes
need: number of ids, special ids, content hash, bytes per token.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modalities.errors import InputError
from modalities.manifest import write_json
from modalities.tokenization import chat
from modalities.tokenization.config import TokenizerSection
from modalities.tokenization.encoding import file_hash, load, num_ids, open_encoder
from modalities.tokenization.importing import import_into
from modalities.tokenization.training import Sample, compression, read_samples, train
from modalities.tokens import token_dtype
from modalities.work import Result, Work, digest_of

_log = logging.getLogger(__name__)
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def run(work: Work[TokenizerSection]) -> Result:
    """Make the tokenizer. Inputs: the masks of `section.sources`, with their units; none for an imported one."""
    section, folder = work.section, work.folder
    file = folder / "tokenizer.json"
    wanted = dict.fromkeys(t for t in (section.end_of_document, section.begin_of_document) if t is not None)
    if section.train is None:
        assert section.tokenizer is not None
        config = dict(
            import_into(folder, section.tokenizer, split_pattern=section.split_pattern, special_tokens=list(wanted))
        )
    else:
        assert section.split_pattern is not None
        special = list(wanted | dict.fromkeys(section.train.special_tokens))
        trained = train(
            _samples(work), config=section.train, special_tokens=special, split_pattern=section.split_pattern
        )
        file.write_text(trained.to_str(pretty=True), encoding="utf-8")
        config = {}
    if section.chat_template is not None:
        chat.check_template(section.chat_template)
        shutil.copyfile(section.chat_template, folder / chat.TEMPLATE)
    ids = _special_ids(file, section)
    _write_companions(folder, config, section)
    return _result(work, file, ids)


def _samples(work: Work[TokenizerSection]) -> Iterator[Sample]:
    assert work.section.train is not None
    return read_samples(work.inputs, sources=work.section.sources, config=work.section.train)


def _special_ids(file: Path, section: TokenizerSection) -> dict[str, int | None]:
    """Return the ids of begin and end of document; raise `InputError` where the tokenizer lacks them."""
    tokenizer = load(file)
    ids: dict[str, int | None] = {}
    for name in ("end_of_document", "begin_of_document"):
        token = getattr(section, name)
        ids[name] = None if token is None else tokenizer.token_to_id(token)
        if token is not None and ids[name] is None:
            known = sorted(t.content for t in tokenizer.get_added_tokens_decoder().values())[:12]
            raise InputError(
                f"tokenization.{name}: expected a token of the tokenizer, such as {', '.join(known) or 'none'}, "
                f"got {token!r}; name one that it has"
            )
    return ids


def _write_companions(folder: Path, config: dict[str, Any], section: TokenizerSection) -> None:
    """Write tokenizer_config.json and special_tokens_map.json unless they came with the tokenizer."""
    if not config:
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,
            "eos_token": section.end_of_document,
        }
        if section.begin_of_document is not None:
            config["bos_token"] = section.begin_of_document
        write_json(folder / "tokenizer_config.json", config)
    if not (folder / "special_tokens_map.json").exists():
        write_json(folder / "special_tokens_map.json", {r: config[r] for r in SPECIAL_ROLES if config.get(r)})


def _result(work: Work[TokenizerSection], file: Path, ids: dict[str, int | None]) -> Result:
    count = num_ids(load(file))
    info: dict[str, Any] = {
        "vocab_size": count,
        "largest_id": count - 1,
        "token_dtype": token_dtype(count).name,
        "end_of_document": work.section.end_of_document,
        "end_of_document_id": ids["end_of_document"],
        "begin_of_document": work.section.begin_of_document,
        "begin_of_document_id": ids["begin_of_document"],
        "tokenizer_hash": file_hash(file),
        "chat": work.section.chat_template is not None,
        "origin": "imported" if work.section.train is None else "trained",
    }
    if work.section.train is not None:
        info["vocab_size_asked"] = work.section.train.vocab_size
        if count < work.section.train.vocab_size:
            _log.warning("%s: the sample has pairs for %d ids, not for %d", work.label, count, info["vocab_size_asked"])
        encoder, info["not_gigatoken"] = open_encoder(file, special_in_text=False)
        info["bytes_per_token"], info["sample_documents"] = compression(_samples(work), encoder.encode)
    files = {path.name: file_hash(path) for path in sorted(work.folder.iterdir())}
    return Result(content=digest_of(files), info=info)
