"""Output layers read in tiles: a few tokens times a few ids, never [N,V].

N tokens, H hidden size, V vocabulary, n x v a tile. `TiledLogits` computes the logits of one tile,
every time into the same memory, and takes the gradients of tiles back to the layer's inputs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from opdvr.core.output_layer import OutputLayer, Source, inputs_of

# Elements of a tile. On a CPU 4 MiB of float32 a thread stay in cache between the steps of a tile;
# a GPU needs a quarter of a GiB for its kernels to outlast their launches.
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**20, 2**26
# Tokens of a tile where there are more: enough for products at full speed in both directions.
_CPU_TOKENS, _GPU_TOKENS = 512, 4096
# Fewest ids of a tile: narrower products are slow, however many tokens are asked for.
_LEAST_COLUMNS = 128


class TileSize(NamedTuple):
    """Most tokens and ids of a tile."""

    tokens: int
    columns: int


def tile_size(
    n_tokens: int,
    vocabulary: int,
    device: torch.device,
    tile_tokens: int | None = None,
    tile_vocabulary: int | None = None,
    ranking: bool = False,
) -> TileSize:
    """What is asked for, and otherwise what suits the device; never more than there is.

    ranking: a top-k is made of the tiles, which on a CPU is quicker the more ids each has.

    Raises:
        ValueError: a tile of no tokens or of no ids.
    """
    for name, asked in (("tile_tokens", tile_tokens), ("tile_vocabulary", tile_vocabulary)):
        if asked is not None and asked < 1:
            raise ValueError(f"{name}={asked} must be at least 1")
    on_cpu = device.type == "cpu"
    elements = _CPU_ELEMENTS * torch.get_num_threads() if on_cpu else _GPU_ELEMENTS
    usual = _CPU_TOKENS // (2 if ranking else 1) if on_cpu else _GPU_TOKENS
    tokens = tile_tokens or usual
    tokens = max(1, min(tokens, n_tokens))
    columns = min(tile_vocabulary or max(elements // tokens, _LEAST_COLUMNS), vocabulary)
    if tile_tokens is None:  # a small vocabulary leaves room for more tokens
        tokens = max(1, min(elements // columns, n_tokens))
    return TileSize(tokens, columns)


def spans(total: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `total`."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


class TileIds:
    """Which of the ids [N,K] fall into which tile."""

    def __init__(self, ids: torch.Tensor, vocabulary: int, size: TileSize) -> None:
        n_tokens, self._size = ids.shape[0], size
        flat = ids.flatten()
        self._positions = (flat >= 0).nonzero().squeeze(1)
        rows = self._positions.div(max(ids.shape[1], 1), rounding_mode="floor")
        columns = flat[self._positions]
        if n_tokens <= size.tokens and vocabulary <= size.columns:
            self._index = rows.mul_(vocabulary).add_(columns)
            self._row_tiles, self._bounds = 1, [0, len(rows)]
            return
        self._row_tiles = -(-n_tokens // size.tokens)
        strip = columns.div(size.columns, rounding_mode="floor")
        first = strip * size.columns
        width = (vocabulary - first).clamp_(max=size.columns)
        index = rows.remainder(size.tokens).mul_(width).add_(columns.sub_(first))
        tile = strip.mul_(self._row_tiles).add_(rows.div_(size.tokens, rounding_mode="floor"))
        n_tiles = -(-vocabulary // size.columns) * self._row_tiles
        self._bounds = [0, *tile.bincount(minlength=n_tiles).cumsum(0).tolist()]
        order = tile.argsort()
        self._positions, self._index = self._positions[order], index[order]

    def of(self, tokens: slice, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Those in a tile: where they stand in ids.flatten(), and in tile.flatten()."""
        strip = columns.start // self._size.columns
        tile = strip * self._row_tiles + tokens.start // self._size.tokens
        part = slice(self._bounds[tile], self._bounds[tile + 1])
        return self._positions[part], self._index[part]


class TiledLogits:
    """Computes tempered logits [n,v] of a tile, in float32 (float64 for float64 inputs).

    The product and the bias are in the weight's dtype; autocast must be off.

    Args:
        source: the layer or logits; read to `vocabulary` columns only.
        hidden: [N,H], None for given logits.
        temperature: divides the logits.
        size: most tokens and ids of a tile.
        rows: [M] int64, the tokens to read, in this order; None is all.
        with_slope: keep what the gradient of a soft cap needs.

    Attributes:
        factor: d(tempered logit) / d(product), the soft cap's slope apart.
        slope: [n,v] of the tile read last, that slope; None without a cap.
    """

    def __init__(
        self,
        source: Source,
        hidden: torch.Tensor | None,
        temperature: float,
        size: TileSize,
        rows: torch.Tensor | None = None,
        with_slope: bool = False,
    ) -> None:
        self.source, self.temperature, self.rows = source, temperature, rows
        main = inputs_of(source, hidden)[0]
        self.linear = isinstance(source, OutputLayer)
        self.factor = self.factor_of(source, temperature)
        self.soft_cap = source.soft_cap if self.linear else None
        product_dtype = main.dtype
        if self.linear:
            product_dtype = source.weight.dtype
            chosen = hidden if rows is None else hidden.index_select(0, rows)
            self.hidden = chosen.to(product_dtype)
            self.bias = None if source.bias is None else source.bias.to(product_dtype)
        self.dtype = torch.float64 if product_dtype == torch.float64 else torch.float32
        elements = size.tokens * size.columns
        self._logits = main.new_empty(elements, dtype=self.dtype)
        self._product = self._logits
        if self.linear and product_dtype != self.dtype:
            self._product = main.new_empty(elements, dtype=product_dtype)
        self.slope = self._slope = None
        if with_slope and self.soft_cap is not None:
            self._slope = torch.empty_like(self._logits)

    @staticmethod
    def factor_of(source: Source, temperature: float) -> float:
        """The attribute, without an instance."""
        return (source.logit_scale if isinstance(source, OutputLayer) else 1.0) / temperature

    def __call__(self, tokens: slice, columns: slice) -> torch.Tensor:
        """Logits [n,v] / temperature, contiguous, -inf where excluded; valid until the next."""
        if not self.linear:
            table = self.source.logits[:, columns]
            part = table[tokens] if self.rows is None else table[self.rows[tokens]]
            return self._shaped(self._logits, tokens, columns).copy_(part).mul_(self.factor)
        product = self._shaped(self._product, tokens, columns)
        weight = self.source.weight[columns].t()
        if self.bias is None:
            torch.mm(self.hidden[tokens], weight, out=product)
        else:
            torch.addmm(self.bias[columns], self.hidden[tokens], weight, out=product)
        logits = self._shaped(self._logits, tokens, columns)
        if logits.dtype != product.dtype:
            logits.copy_(product)
        if self.soft_cap is None:
            return logits if self.factor == 1.0 else logits.mul_(self.factor)
        return self._capped(logits, tokens, columns)

    def _capped(self, logits: torch.Tensor, tokens: slice, columns: slice) -> torch.Tensor:
        excluded = logits == -torch.inf if self.bias is not None else None
        level = logits.mul_(self.source.logit_scale / self.soft_cap).tanh_()
        if self._slope is not None:
            self.slope = self._shaped(self._slope, tokens, columns)
            torch.mul(level, level, out=self.slope).neg_().add_(1)
        capped = level.mul_(self.soft_cap / self.temperature)
        # the cap would give an excluded id a finite logit
        return capped if excluded is None else capped.masked_fill_(excluded, -torch.inf)

    @staticmethod
    def _shaped(memory: torch.Tensor, tokens: slice, columns: slice) -> torch.Tensor:
        n, v = tokens.stop - tokens.start, columns.stop - columns.start
        return memory[: n * v].view(n, v)


class TiledGradients:
    """Sums the gradients of tiles to those of hidden states (or given logits), weight and bias.

    Ids must be the outer loop: `columns_done` ends a strip of them, whose piece of the weight's
    gradient is summed in float32 and only then stored in the weight's dtype.

    Args:
        tiles: what the tiles were read with.
        like: hidden (or logits) [N,...], weight and bias; None where no gradient is wanted.
        vocabulary: ids below it come in tiles.
    """

    def __init__(
        self,
        tiles: TiledLogits,
        like: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
        vocabulary: int,
    ) -> None:
        self.tiles, (self._main_like, weight, bias) = tiles, like
        self.weight = None
        if weight is not None:  # strips are written one by one, and nothing is above them
            self.weight = torch.empty_like(weight)
            self.weight[vocabulary:] = 0
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=tiles.dtype)
        self._piece: torch.Tensor | None = None
        self._main = None
        if self._main_like is not None:
            if tiles.linear:
                self._main = torch.zeros_like(tiles.hidden, dtype=tiles.dtype)
            else:
                self._main = torch.zeros_like(self._main_like)

    def add(self, tokens: slice, columns: slice, gradient: torch.Tensor) -> None:
        """Take the gradient [n,v] with respect to tempered logits times `tiles.factor`."""
        tiles = self.tiles
        if not tiles.linear:
            if self._main is not None:
                rows = tokens if tiles.rows is None else tiles.rows[tokens]
                self._main[:, columns][rows] = gradient.to(self._main.dtype)
            return
        if tiles.slope is not None:
            gradient.mul_(tiles.slope)
        if self.bias is not None:
            self.bias[columns] += gradient.sum(0)
        weight = tiles.source.weight[columns]
        gradient = gradient.to(weight.dtype)
        if self._main is not None:
            _add_product(self._main[tokens], gradient, weight)
        if self.weight is None:
            return
        if self._piece is not None:
            _add_product(self._piece, gradient.t(), tiles.hidden[tokens])
        elif self.weight.dtype == tiles.dtype:  # sums go straight into the result
            self._piece = torch.mm(gradient.t(), tiles.hidden[tokens], out=self.weight[columns])
        else:
            self._piece = (gradient.t() @ tiles.hidden[tokens]).to(tiles.dtype)

    def columns_done(self, columns: slice) -> None:
        """No more tiles with these ids will come."""
        if self.weight is None:
            return
        if self._piece is None:
            self.weight[columns] = 0
        elif self.weight.dtype != self._piece.dtype:
            self.weight[columns] = self._piece.to(self.weight.dtype)
        self._piece = None

    def results(self) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Gradients of (hidden or logits, weight, bias), in the dtypes of what they belong to."""
        main, bias = self._main, self.bias
        if main is not None and self.tiles.linear:
            main = main.to(self._main_like.dtype)
            if self.tiles.rows is not None:
                all_rows = torch.zeros_like(self._main_like)
                main = all_rows.index_copy_(0, self.tiles.rows, main)
        if bias is not None:
            bias = bias.to(self.tiles.source.bias.dtype)
        return main, self.weight, bias


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
