"""Settings from the environment. The only module that reads it."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def state_folder() -> Path:
    return Path.home() / ".local" / "state" / "tuner"


class Settings(BaseSettings):
    """Each field is read from TUNER_<NAME>.

    db: database URL.   runs: folder for logs and files of engine starts.   engine_python: the interpreter that has
    vLLM, where a study file names none.
    """

    model_config = SettingsConfigDict(env_prefix="TUNER_", extra="ignore")

    db: str = Field(default_factory=lambda: f"sqlite:///{state_folder() / 'tuner.db'}")
    runs: Path = Field(default_factory=lambda: state_folder() / "runs")
    engine_python: Path | None = None
