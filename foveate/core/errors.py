"""The one error tree: everything foveate raises on purpose, each with a message fit for a client.

    FoveateError
    ├── InvalidRequest              the client's mistake; retrying is useless        (400)
    │   ├── Unsupported             an option that exists elsewhere but not here     (400)
    │   ├── InvalidImage            bytes that are not a usable picture              (400)
    │   └── ContextLengthExceeded   can never fit the context or the memory          (400)
    ├── TooLarge                    a body beyond the documented limit               (413)
    ├── ModelNotFound               the request names a model that is not served     (404)
    ├── ResponseNotFound            the request names a response that is not stored  (404)
    ├── Busy                        temporary shortage; carries retry_after_s        (503)
    ├── RequestFailed               this request failed inside the server            (500)
    │   ├── EncodeFailed            the vision encoder failed on one of its images
    │   └── StepFailed              a model step failed; its whole cohort fails
    ├── ConfigError                 settings that contradict each other or the machine
    └── CheckpointError             a tensor or file is missing, unexpected or mis-shaped

A message names what is wrong and, where there is one, the limit; it never holds image data or a Python repr.
How a class becomes a wire status is the server's knowledge, not this module's.
"""

from __future__ import annotations


class FoveateError(Exception):
    """Root of the tree. `message` is public; `code` is a stable machine-readable word."""

    code = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(kind: type[FoveateError], message: str, state: dict[str, object]) -> FoveateError:
    """Errors cross process borders (the encoder's), so they pickle whatever their constructor takes."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class InvalidRequest(FoveateError):
    """The client sent something unusable. `param` is the offending field's path, if one is to blame."""

    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unsupported(InvalidRequest):
    """A known option that this server does not offer, refused by name rather than ignored."""

    code = "unsupported_parameter"


class InvalidImage(InvalidRequest):
    """A picture that cannot be read or breaks a limit. `param` is its path in the request."""

    code = "invalid_image"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, with its images and the wanted output, can never fit."""

    code = "context_length_exceeded"


class TooLarge(InvalidRequest):
    """A body or payload beyond the documented byte limit."""

    code = "request_too_large"


class ModelNotFound(InvalidRequest):
    """The request names a model that is not the one served."""

    code = "model_not_found"


class ResponseNotFound(InvalidRequest):
    """The request names a stored response that is not, or no longer, stored."""

    code = "response_not_found"


class Busy(FoveateError):
    """Temporary shortage: a full queue, short host memory, shutting down. `retry_after_s` is in whole seconds.

    `lack` is what there was too little of, for metrics: a limit's name, `host_memory`, or at the end `time`.
    """

    code = "server_busy"

    def __init__(self, message: str, retry_after_s: int = 1, lack: str = "time") -> None:
        super().__init__(message)
        self.retry_after_s, self.lack = retry_after_s, lack


class RequestFailed(FoveateError):
    """Something inside the server failed for this request."""

    code = "request_failed"


class EncodeFailed(RequestFailed):
    """The vision encoder could not encode one of the request's images."""

    code = "image_encode_failed"


class StepFailed(RequestFailed):
    """A model step failed, and with it every request that was in it."""

    code = "engine_step_failed"


class ConfigError(FoveateError):
    """Settings that contradict each other, the model or the machine."""

    code = "config_error"


class CheckpointError(FoveateError):
    """A checkpoint whose files or tensors are not what its config promises; the message names the tensor."""

    code = "checkpoint_error"
