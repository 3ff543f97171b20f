"""A conversation by the openai SDK, which notes where the proxy says that each call belongs."""

from typing import Any

import openai


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def echo(message: Any) -> dict[str, Any]:
    """An answer as a program puts it back into its history."""
    return message.model_dump(exclude_none=True)  # type: ignore[no-any-return]


class Talk:
    """The conversation; `labels` are the session and exchange that each answer named."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self.labels: list[tuple[str, str]] = []

    def ask(self, *messages: Any, **more: Any) -> Any:
        """One call; the answer's message."""
        raw = self._client.chat.completions.with_raw_response.create(model="m", messages=[*messages], **more)
        self.labels.append((raw.headers["x-palimpsest-session"], raw.headers["x-palimpsest-exchange"]))
        return echo(raw.parse().choices[0].message)
