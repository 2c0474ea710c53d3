// Attention's two products in whole tiles. Their `Block` has a multiple of 32 keys.

constexpr int MIN_TILED_ROWS = 5;    // with fewer rows, padding to tiles costs more than tiles save

template <class Tiles, class X>
void tiled_scores(Tiles& tiles, const Tile<X>& tile, const Block& block, Scratch<X>& scratch) {
    const int d = tile.call.head_dim, steps = (d + 31) / 32;
    const uint16_t* keys[2 * (MAX_HEAD_DIM / 32)];
    for (int group = 0; group < block.groups; group += 2) {
        for (int half = 0; half < 2; half++) {
            const uint16_t* from = tile.sixteen(tile.call.k, block.start + 16 * (group + half));
            for (int step = 0; step < steps; step++) keys[2 * step + half] = from + 512 * step;
            if (d % 32 == 0) continue;
            // The last step has only sixteen elements; behind them lies another key, or uninitialized memory.
            uint16_t* spare = scratch.spare + 512 * half;
            std::memcpy(spare, from + 512 * (steps - 1), sizeof(uint16_t) * 256);
            std::memset(spare + 256, 0, sizeof(uint16_t) * 256);
            keys[2 * (steps - 1) + half] = spare;
        }
        for (int row = 0; row < tile.rows; row += 32) {
            tiles.multiply(TileProduct<uint16_t>{scratch.q + row * scratch.width, scratch.width, keys, 32,
                                                 scratch.s + row * BLOCK + 16 * group, BLOCK, steps,
                                                 tile.rows - row > 16, true, false});
        }
    }
}

template <class Tiles, class X>
void tiled_values(Tiles& tiles, const Tile<X>& tile, const Block& block, Scratch<X>& scratch, bool accumulate) {
    const int d = tile.call.head_dim, steps = block.groups / 2;
    const int in_last = block.keys.high - block.start - 32 * (steps - 1);
    const uint16_t *from[BLOCK / 32], *values[BLOCK / 16];
    for (int step = 0; step < steps; step++) from[step] = tile.sixteen(tile.call.v, block.start + 32 * step);
    if (in_last < 32) {
        // Memory behind the last value may hold NaN, and 0 x NaN is NaN.
        uint16_t* spare = scratch.spare;
        std::fill_n(spare, 32 * d, 0);
        std::copy_n(from[steps - 1], in_last / 2 * 2 * d, spare);
        for (int i = in_last / 2 * 2 * d; i < (in_last + 1) / 2 * 2 * d; i += 2) spare[i] = from[steps - 1][i];
        from[steps - 1] = spare;
    }
    for (int column = 0; column < d; column += 32) {
        for (int i = 0; i < 2 * steps; i++) values[i] = from[i / 2] + 2 * (column + 16 * (i % 2));
        for (int row = 0; row < tile.rows; row += 32) {
            float* out = scratch.split.out + static_cast<int64_t>(row) * d + column;
            tiles.multiply(TileProduct<uint16_t>{scratch.p + row * BLOCK, BLOCK, values, 2 * d, out, d, steps,
                                                 tile.rows - row > 16, d - column > 16, accumulate});
        }
    }
}
