"""Training checkpoints: PyTorch's distributed checkpoint (DCP) plus `checkpoint.json`, which is written last.

A checkpoint folder appears by one rename, after every file is on disk: what has its name is whole. Progress stands inside,
never in a name. DCP's `.metadata` is a pickle, so it is read through an unpickler that knows DCP's own few classes and nothing
else; tensors are read by `torch.load(weights_only=True)`. Names of tensors: `model.<name>` and `optimizer.<name>.<kind>`.

`Weights` reads tensors one by one without a process group, whatever layout wrote them; `open_model` builds the module.
"""

import dataclasses
import io
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from modalities import config as configs
from modalities.errors import StoreError
from modalities.manifest import write_json
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig

# One rank without a process group is meant; DCP warns of it at every call.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

NAME = "checkpoint.json"
FORMAT = 1
MODEL, OPTIMIZER = "model.", "optimizer."

_ALLOWED = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    *(("torch", name) for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the training is, and in what form: everything in a checkpoint that is not a tensor."""

    step: int
    """Steps done; the next one has this number."""
    tokens_seen: int
    updates: int
    """Optimizer updates; fewer than steps where some were skipped."""
    model: LlamaConfig
    numerics: Mapping[str, Any]
    """Layout, precision, threads, device, versions: what fixes the bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint on its way. Its tensors are staged, so training may go on."""

    folder: Path
    progress: Progress
    future: "Future[Any]"

    def finish(self) -> None:
        """Wait until the data is on disk, then make the checkpoint count (rank 0)."""
        self.future.result()
        if _rank() == 0:
            _publish(_partial(self.folder), self.folder, self.progress)


def save(folder: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint into `folder`, which must not exist. All ranks call it and return when it is there."""
    writer = _prepare(folder)
    state_dict_saver.save(dict(tensors), storage_writer=writer, no_dist=not dist.is_initialized())
    if _rank() == 0:
        _publish(_partial(folder), folder, progress)
    if dist.is_initialized():
        dist.barrier()


def save_in_background(
    folder: Path, tensors: Mapping[str, Tensor], progress: Progress, *, group: dist.ProcessGroup | None
) -> Saving:
    """Stage a checkpoint and write it while training goes on; all ranks call it, and `finish` later.

    `group` is a gloo group that nothing else uses: on a shared one its messages mix with training's and abort the process.
    """
    writer = _prepare(folder)
    alone = not dist.is_initialized()
    future = state_dict_saver.async_save(dict(tensors), storage_writer=writer, process_group=group, no_dist=alone)
    assert isinstance(future, Future)
    return Saving(folder, progress, future)


def _prepare(folder: Path) -> FileSystemWriter:
    partial = _partial(folder)
    if _rank() == 0:
        if folder.exists():
            raise StoreError(f"{folder}: expected no checkpoint here yet, got one; remove it")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    if dist.is_initialized():
        dist.barrier()
    return FileSystemWriter(partial, sync_files=True)


def _publish(partial: Path, folder: Path, progress: Progress) -> None:
    """Write the record, flush the folder, and rename it."""
    files = {p.name: p.stat().st_size for p in sorted(partial.iterdir()) if p.is_file()}
    write_json(partial / NAME, {"format": FORMAT, "files": files, **configs.plain(progress)})
    _sync_folder(partial)
    partial.rename(folder)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


# --- reading ---------------------------------------------------------------------------------------------------------


def read_progress(folder: Path) -> Progress:
    """Read how far a checkpoint is; raise `StoreError` unless all its files are there in full."""
    path = folder / NAME
    data = _read_json(path)
    if data.pop("format", None) != FORMAT:
        raise StoreError(
            f"{path}: expected checkpoint format {FORMAT}, got another; train again or use the release that wrote it"
        )
    for name, size in data.pop("files").items():
        file = folder / name
        got = file.stat().st_size if file.is_file() else None
        if got != size:
            raise StoreError(f"{file}: expected {size} bytes, got {got}; remove the folder {folder} and run again")
    return Progress(**{**data, "model": configs.build(LlamaConfig, data["model"])})


def load(folder: Path, tensors: Mapping[str, Tensor]) -> Progress:
    """Fill `tensors` in place, whatever layout wrote them, and return the progress. All ranks call it.

    A tensor that the checkpoint lacks, or holds in another shape or type, is an error.
    """
    progress = read_progress(folder)
    reader = _Reader(folder)
    stored = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        entry = stored.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise StoreError(
                f"{folder}: expected a tensor {name}, got none; was it written with another model or optimizer?"
            )
        wanted, got = (tuple(tensor.shape), tensor.dtype), (tuple(entry.size), entry.properties.dtype)
        if wanted != got:
            raise StoreError(
                f"{folder}: {name}: expected shape and type {wanted}, got {got}; the checkpoint is another model's"
            )
    state_dict_loader.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())
    return progress


def newest(parent: Path) -> Path | None:
    """Return the complete checkpoint in `parent` with the most steps; half-written and damaged ones do not count."""
    found = []
    for folder in sorted(parent.iterdir()) if parent.is_dir() else []:
        if folder.is_dir() and not folder.name.endswith(".partial"):
            try:
                found.append((read_progress(folder).step, folder))
            except StoreError:
                continue
    return max(found)[1] if found else None


def prune(parent: Path, *, keep: int) -> None:
    """Remove all but the `keep` complete checkpoints with the most steps."""
    complete = []
    for folder in sorted(parent.iterdir()):
        if (folder / NAME).is_file() and not folder.name.endswith(".partial"):
            complete.append((_read_json(folder / NAME)["step"], folder))
    for _, folder in sorted(complete)[:-keep]:
        doomed = _partial(folder)
        folder.rename(doomed)
        shutil.rmtree(doomed)


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into DCP metadata")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """DCP's reader, but for the pickle."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = _read_metadata(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _read_metadata(folder: Path) -> Metadata:
    path = folder / ".metadata"
    try:
        metadata = _SafeUnpickler(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; the checkpoint is not complete, remove it and run again") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path}: expected DCP metadata, got something else ({error}); do not use this checkpoint"
        ) from None
    if not isinstance(metadata, Metadata):
        raise StoreError(f"{path}: expected DCP metadata, got {type(metadata).__name__}; do not use this checkpoint")
    return metadata


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; the checkpoint is not complete, remove it and run again") from None
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON ({error}); remove the folder and run again") from None
    return data


class Weights:
    """The tensors of a checkpoint, read one by one; memory is the largest tensor and its largest shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = checkpoint_folder(folder)
        self.progress = read_progress(self.folder)
        self._metadata = _read_metadata(self.folder)

    def names(self, prefix: str = MODEL) -> list[str]:
        """Return the names that begin with `prefix`, without it, sorted."""
        return sorted(n.removeprefix(prefix) for n in self._metadata.state_dict_metadata if n.startswith(prefix))

    def entry(self, name: str, prefix: str = MODEL) -> tuple[tuple[int, ...], torch.dtype]:
        """Return shape and type of a tensor without reading it."""
        found = self._metadata.state_dict_metadata.get(prefix + name)
        if not isinstance(found, TensorStorageMetadata):
            raise StoreError(
                f"{self.folder}: expected a tensor {prefix + name}, got none; it is another model's checkpoint"
            )
        return tuple(found.size), found.properties.dtype

    def read(self, name: str, prefix: str = MODEL) -> Tensor:
        """Return a full tensor on the CPU."""
        shape, dtype = self.entry(name, prefix)
        full = torch.empty(shape, dtype=dtype)
        for index, place in self._metadata.storage_data.items():
            if index.fqn != prefix + name:
                continue
            with (self.folder / place.relative_path).open("rb") as file:
                file.seek(place.offset)
                shard = torch.load(io.BytesIO(file.read(place.length)), map_location="cpu", weights_only=True)
            offset = index.offset if index.offset is not None else (0,) * shard.ndim
            full[tuple(slice(o, o + n) for o, n in zip(offset, shard.shape, strict=True))] = shard
        return full


def checkpoint_folder(folder: Path) -> Path:
    """Return the checkpoint in a pretraining instance's folder, or the folder itself if it is one."""
    return folder if (folder / NAME).is_file() else folder / "checkpoint"


def load_weights(folder: Path) -> Weights:
    """Open a checkpoint, or the one of a pretraining instance, for reading tensor by tensor; needs no process group."""
    return Weights(folder)


def open_model(folder: Path) -> tuple[LlamaConfig, nn.Module]:
    """Build the model of a checkpoint, or of a pretraining instance, on the CPU and in evaluation mode."""
    weights = Weights(folder)
    model: nn.Module = architectures.model_module(weights.progress.model).build(weights.progress.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.read(name))
    return weights.progress.model, model.eval()


def digests(folder: Path) -> dict[str, str]:
    """Return a digest per tensor, in order of names: of its type, shape and bytes, so the same in every layout."""
    weights = Weights(folder)
    found = {}
    for name in weights.names(""):
        tensor = weights.read(name, "")
        digest = xxhash.xxh3_128(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        found[name] = digest.hexdigest()
    return found
