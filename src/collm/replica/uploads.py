"""Training files: checked, kept, listed."""

import asyncio
import io
from collections.abc import Callable
from typing import Literal

from collm.chats import parse_samples
from collm.errors import DataError, RequestError
from collm.replica.archive import Archive
from collm.replica.courtesy import Courtesy
from collm.store.data_folder import DataFolder
from collm.store.pages import Page
from collm.store.uploads import StoredFile


class Uploads:
    """The training files of one replica, for asyncio.

    Args:
        data: Where they are.
        archive: Writes them.
        new_courtesy: Makes what the check of one file is spaced out by.
    """

    def __init__(
        self, data: DataFolder, archive: Archive, new_courtesy: Callable[[], Courtesy]
    ) -> None:
        self._data = data
        self._archive = archive
        self._new_courtesy = new_courtesy

    async def add(self, filename: str, purpose: str, content: bytes) -> StoredFile:
        """Check every line and keep the file; it is on disk when this returns.

        Raises:
            RequestError: A line is no sample, or there is none; names the line and the field.
        """
        courtesy = self._new_courtesy()
        try:
            num_samples = await asyncio.to_thread(count_samples, content, courtesy)
        except asyncio.CancelledError:
            courtesy.stop()
            raise
        return await asyncio.wrap_future(
            self._archive.submit(
                lambda data: data.files.add(
                    filename=filename, purpose=purpose, content=content, num_samples=num_samples
                )
            )
        )

    async def list(
        self,
        *,
        after: str | None,
        limit: int,
        purpose: str | None,
        order: Literal["asc", "desc"],
    ) -> Page[StoredFile]:
        """Return files by age; raises ``UnknownObjectError`` for an unknown ``after``."""
        return await asyncio.to_thread(
            self._data.files.list, after=after, limit=limit, purpose=purpose, order=order
        )

    async def get(self, file_id: str) -> StoredFile:
        """Return one file's row; raises ``UnknownObjectError``."""
        return await asyncio.to_thread(self._data.files.get, file_id)

    async def read(self, file_id: str) -> bytes:
        """Return a file's content as it was uploaded; raises ``UnknownObjectError``."""
        return await asyncio.to_thread(self._data.files.read, file_id)

    async def delete(self, file_id: str) -> None:
        """Remove a file.

        Raises:
            UnknownObjectError: There is no such file.
            StateError: A job that has not ended uses it.
        """
        await asyncio.wrap_future(self._archive.submit(lambda data: data.files.delete(file_id)))


def count_samples(content: bytes, courtesy: Courtesy) -> int:
    """Return the number of samples in a chat-format JSONL file.

    Raises:
        RequestError: A line is no sample, or none is there; names the line and the field.
    """
    try:
        num_samples = sum(1 for _ in parse_samples(courtesy.spaced(io.BytesIO(content))))
    except DataError as error:
        raise _refusal(str(error)) from error
    if not num_samples:
        raise _refusal("it holds no sample; give one JSON object with 'messages' a line")
    return num_samples


def _refusal(reason: str) -> RequestError:
    message = f"The training file is not valid: {reason}."
    return RequestError(message, param="file", code="invalid_file_format")
