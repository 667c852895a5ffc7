"""To be imported before what imports torchvision: its operators exist, also where they cannot be
loaded.
"""

from loaderd_testing.torchvision_import import declare_operators

declare_operators()
