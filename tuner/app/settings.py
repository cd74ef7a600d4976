"""Settings from the environment. The only module that reads it."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def state_folder() -> Path:
    return Path.home() / ".local" / "state" / "tuner"


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Settings(BaseSettings):
    """Each field is read from TUNER_<NAME>.

    db: database URL.   runs: folder for logs and files of engine starts.   engine_python: the interpreter that has
    vLLM, where a study file names none.
    """

    model_config = SettingsConfigDict(env_prefix="TUNER_", extra="ignore")

    db: str = Field(default_factory=lambda: f"sqlite:///{state_folder() / 'tuner.db'}")
    runs: Path = Field(default_factory=lambda: state_folder() / "runs")
    engine_python: Path | None = None


class ServiceSettings(BaseSettings):
    """Each field is read from TUNER_SERVICE_<NAME>; what a study file that came over the network may name. Lists are
    separated by commas.

    roots: folders for models, drafts, data sets and recordings.   interpreters: that a study may name; without any,
    every study gets $TUNER_ENGINE_PYTHON.   options: further vLLM options.   variables: further environment variables
    of an engine, `*` allowed.   trust_remote_code: whether code that comes with a model may run.
    """

    model_config = SettingsConfigDict(env_prefix="TUNER_SERVICE_", extra="ignore")

    roots: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_listed)] = ()
    interpreters: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ()
    options: Annotated[frozenset[str], NoDecode, BeforeValidator(_listed)] = frozenset()
    variables: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ()
    trust_remote_code: bool = False


class ClientSettings(BaseSettings):
    """server: URL of the service, from TUNER_SERVER.   token: its access token, from TUNER_TOKEN."""

    model_config = SettingsConfigDict(env_prefix="TUNER_", extra="ignore")

    server: str = "http://127.0.0.1:8321"
    token: SecretStr | None = None
