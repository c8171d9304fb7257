"""Blocks of one's own: drillcore check docs/my_block.py:Branch --width 256"""

from torch import nn


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.norm(self.down(nn.functional.gelu(self.up(x))))


class WrongSide(Branch):
    def forward(self, x):  # the norm was meant for the output
        return self.down(nn.functional.gelu(self.up(self.norm(x))))
