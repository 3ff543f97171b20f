"""Our tool in requests of each format: what differs between them. `requests` has what is the same in all."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from proxy.wire.body import SplitBody
from proxy.wire.json_values import encode_text, encode_value
from proxy.wire.rounds.stitching import OwnResult, RoundReader, RoundStitcher


class OwnTool(msgspec.Struct, frozen=True):
    """Our tool. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, object]

    def spell(self) -> tuple[bytes, bytes, bytes]:
        """Return name, description and parameters as raw JSON."""
        return encode_text(self.name), encode_text(self.description), encode_value(self.parameters)


class RoundWire(RoundReader):
    """Our tool, its calls and their results in one format. Each format has one subclass."""

    result_key: ClassVar[bytes]  # of the member that names the call of a result

    @abstractmethod
    def make_stitcher(
        self, tool: str, *, is_stream: bool, binds_reasoning: bool, is_stored: bool = False, echo: bytes = b""
    ) -> RoundStitcher:
        """Return what stitches the rounds of one response. `echo`: see `RoundStitcher`."""

    @abstractmethod
    def list_names(self, tool: Mapping[str, object]) -> list[str]:
        """Return the names that a decoded tool of a request has or brings; some may be empty."""

    @abstractmethod
    def spell_tool(self, tool: OwnTool) -> bytes:
        """Return our tool as a raw element of `tools`."""

    @abstractmethod
    def find_obstacle(self, body: SplitBody) -> str:
        """Return what in a request, beside its tools and its choice of them, excludes our tool; empty if nothing."""

    @abstractmethod
    def is_choice_free(self, body: SplitBody) -> bool:
        """Return whether the request allows the model to call our tool."""

    @abstractmethod
    def forbid_calls(self) -> bytes:
        """Return the raw `tool_choice` with which the model calls nothing; empty if that costs the cache."""

    @abstractmethod
    def spell_results(self, results: Sequence[OwnResult]) -> list[bytes]:
        """Return the raw messages, or items, with results of our tool."""

    @abstractmethod
    def rename_calls(self, answer: Sequence[bytes], tool: str, ids: Iterator[str]) -> tuple[bytes, ...]:
        """Return an answer in which the calls of our tool have these ids, in their order."""

    @abstractmethod
    def drop_calls(self, answer: Sequence[bytes], tool: str, answered: frozenset[str]) -> tuple[bytes, ...]:
        """Return an answer without the calls of our tool that have no result, and without messages that only had them.

        `answered` are the ids of the calls that have one.
        """

    def join_results(self, results: Sequence[OwnResult], following: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return results of ours, and the client's elements that follow the answer, the client's results among them."""
        return (*self.spell_results(results), *following)
