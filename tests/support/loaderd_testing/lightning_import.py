"""Lightning beside a torchvision whose operators cannot be loaded: it imports torchvision."""

from loaderd_testing.torchvision_import import declare_operators

declare_operators()
import lightning  # noqa: E402, F401
