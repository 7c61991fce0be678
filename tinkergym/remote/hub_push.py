"""Push an export to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError


def push_folder(
    folder: Path,
    repository: str,
    *,
    private: bool = True,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload a folder to a repository, which is created if it does not exist; returns the commit's URL.

    Args:
        folder: An export.
        repository: `owner/name`.
        private: Whether a new repository is private.
        token: None takes the one of `hf auth login`, or HF_TOKEN.
        endpoint: Another hub's address; None is the usual one, or HF_ENDPOINT.

    Raises:
        InvalidRequestError: The hub refused it, or cannot be reached.
        MissingExtraError: Its client is not installed.
    """
    hub = import_extra("huggingface_hub", "pushing to the hub needs its client")
    api = hub.HfApi(endpoint=endpoint, token=token, library_name="tinkergym")
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            commit_message="Export of tinkergym",
            delete_patterns="*",
        )
    except Exception as error:  # Its own errors, and those of its HTTP library.
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
        raise InvalidRequestError(
            f"{folder} could not be pushed to {repository!r}: {first}",
            hint="the folder stays; check the name, your connection, and the rights of your token "
            "(`hf auth login`, or HF_TOKEN), then push it with Exported.push_to_hub or `hf upload`",
            field="push_to_hub",
        ) from error
    return str(done.commit_url)
