"""What a user can do something about: one class per remedy. Everything else is a bug and raises as it is."""


class ModalitiesError(Exception):
    """Base of all errors that end a command with a message instead of a traceback."""

    outcome = "bad_input"
    """Class written to `outcome.json`; see `modalities.job`."""


class ConfigError(ModalitiesError):
    """The configuration cannot be used as written: `file:line: section.key: expected ..., got ...; do ...`."""


class Invalid(ValueError):
    """Raised by a config dataclass or a cross-section check; the loader adds file and line of `key`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


class InputError(ModalitiesError):
    """An input file or record is not what it should be; the message names file and position."""


class StoreError(ModalitiesError):
    """Something in the store is missing, damaged or held by somebody else."""


class OutOfMemoryError(ModalitiesError):
    """A job needed more memory than it had; the message names the key that lowers it."""

    outcome = "out_of_memory"


class DivergedError(ModalitiesError):
    """Loss or gradients are no longer finite, and the policy says to stop."""

    outcome = "diverged"


class HungError(ModalitiesError):
    """A collective operation made no progress within its limit."""

    outcome = "hang"


class InterruptedRunError(ModalitiesError):
    """The job was told to stop (signal or wall limit) and saved its state; starting it again goes on."""

    outcome = "interrupted"
