"""The one tree of errors; each carries what explains it, and ``server`` maps them to statuses."""


class CollmError(Exception):
    """Anything that collm raises on purpose."""


class ConfigError(CollmError):
    """A configuration value is wrong: names the field, the value and what is allowed."""


class ModelError(CollmError):
    """A checkpoint cannot be found, read, or served by this engine."""


class RequestError(CollmError):
    """A request asks for something that cannot be done.

    Args:
        message: What is wrong and what is allowed.
        param: Name of the offending request field, if one is to blame.
        code: Short machine-readable reason, in the words of the OpenAI API where it has one.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class AdapterError(CollmError):
    """An adapter or version is unknown, malformed, or does not fit this base model."""


class UnknownAdapterError(AdapterError):
    """No such adapter or version is being served; the message lists what exists."""


class CapacityError(CollmError):
    """A fixed resource cannot hold what was asked for, however long one waits."""


class DataError(CollmError):
    """A trace or sample file is missing or malformed: names the file, the line and the field."""


class QueueFullError(CollmError):
    """Too many requests wait already; the same request may succeed later."""


class UnknownObjectError(CollmError):
    """No such file, job, response or sample; the message names what was asked for."""


class StateError(CollmError):
    """What was asked for cannot be done with the object as it stands; says what can.

    Args:
        message: What is wrong and what is allowed.
        code: Short machine-readable reason.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class DiskFullError(CollmError):
    """The disk that holds the data is full; nothing of what was asked for was kept."""


class RoundError(CollmError):
    """A federated round's message or update is malformed, or does not fit the others.

    Args:
        message: What is wrong and what is allowed.
        member: Whose message or update it is, if one member is to blame.
    """

    def __init__(self, message: str, *, member: str | None = None) -> None:
        super().__init__(message)
        self.member = member


class UnreachableError(CollmError):
    """A replica or site does not answer, or not now; the same call may succeed later."""
