"""The built-in serving spaces by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from search_spaces import dense, kimi_k3, tiny_cpu
from search_spaces.setting import Setting
from search_spaces.space import Space, SpaceError

SPACES: Mapping[str, Callable[[Setting], Space]] = MappingProxyType(
    {kimi_k3.NAME: kimi_k3.build, dense.NAME: dense.build, tiny_cpu.NAME: tiny_cpu.build}
)


def build(name: str, setting: Setting) -> Space:
    """Raises SpaceError for a name that is not built in, and where the space cannot be had in that setting."""
    if name not in SPACES:
        raise SpaceError(f"there is no space {name!r}; built in are {', '.join(SPACES)}")
    return SPACES[name](setting)
