// What attention computes of a tile of cells: scores of queries, a lane for each cell; weights; weighed values summed up.
#pragma once

#include "lanes.h"

#include <algorithm>
#include <type_traits>

namespace edgellm {

// The mask of a row. Cells from `whole` on do not fill a tile; theirs is filled up with such as nobody sees.
struct Mask {
    const ggml_fp16_t *cells, *tail;
    int                whole;

    const ggml_fp16_t * at(int tile) const { return tile < whole ? cells + tile : tail; }
};

// Scores of COUNT queries for one tile of cells, before scale and mask.
template <int COUNT> static void score(const float * keys, const float * queries, int size, float * scores, int stride) {
    Floats sums[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sums[i] = Lanes::zero();
    }
    for (int d = 0; d < size; d++) {
        const Floats k = Lanes::floats(keys + d * Lanes::COUNT);
        for (int i = 0; i < COUNT; i++) {
            sums[i] = Lanes::fused(k, Lanes::all(queries[i * size + d]), sums[i]);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        Lanes::store(scores + i * stride, sums[i]);
    }
}

static void score_some(int queries, const float * keys, const float * query, int size, float * scores, int stride) {
    switch (queries) {
        case 1: score<1>(keys, query, size, scores, stride); break;
        case 2: score<2>(keys, query, size, scores, stride); break;
        case 3: score<3>(keys, query, size, scores, stride); break;
        case 4: score<4>(keys, query, size, scores, stride); break;
        case 5: score<5>(keys, query, size, scores, stride); break;
        case 6: score<6>(keys, query, size, scores, stride); break;
        case 7: score<7>(keys, query, size, scores, stride); break;
        default: score<8>(keys, query, size, scores, stride); break;
    }
}

// 2^(t - power) of a tile's scores t, by the polynomial of Moshier's Cephes library for the part below one.
static void weigh(float * scores, float power) {
    const Floats t = Lanes::floats(scores), n = Lanes::rounded(t), f = Lanes::minus(t, n);
    Floats       y = Lanes::all(1.535336188319500e-4f);
    for (const float k : { 1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f, 2.402264791363012e-1f,
                           6.931472028550421e-1f, 1.0f }) {
        y = Lanes::fused(y, f, Lanes::all(k));
    }
    Lanes::store(scores, Lanes::scaled(y, Lanes::minus(n, Lanes::all(power))));
}

// Adds weights times values of a tile's cells to COUNT queries' sums, WIDTH registers of each; and the weights to totals.
// `stride`, `size`: from one query's weights and sums to the next one's.
template <int COUNT, int WIDTH, bool TOTAL>
static void mix(const float * weights, int stride, const float * values, int size, float * sums, float * totals) {
    Floats sum[COUNT][WIDTH], total[COUNT];
    for (int i = 0; i < COUNT; i++) {
        total[i] = Lanes::all(totals[i]);
        for (int j = 0; j < WIDTH; j++) {
            sum[i][j] = Lanes::floats(sums + i * size + j * Lanes::COUNT);
        }
    }
    for (int c = 0; c < Lanes::COUNT; c++) {
        Floats v[WIDTH];
        for (int j = 0; j < WIDTH; j++) {
            v[j] = Lanes::floats(values + c * size + j * Lanes::COUNT);
        }
        for (int i = 0; i < COUNT; i++) {
            const Floats w = Lanes::all(weights[i * stride + c]);
            if constexpr (TOTAL) {
                total[i] = Lanes::plus(total[i], w);
            }
            for (int j = 0; j < WIDTH; j++) {
                sum[i][j] = Lanes::fused(w, v[j], sum[i][j]);
            }
        }
    }
    for (int i = 0; i < COUNT; i++) {
        if constexpr (TOTAL) {
            totals[i] = Lanes::first(total[i]);
        }
        for (int j = 0; j < WIDTH; j++) {
            Lanes::store(sums + i * size + j * Lanes::COUNT, sum[i][j]);
        }
    }
}

template <int WIDTH, bool TOTAL>
static void mix_some(int count, const float * weights, int stride, const float * values, int size, float * sums, float * totals) {
    switch (count) {
        case 1: mix<1, WIDTH, TOTAL>(weights, stride, values, size, sums, totals); break;
        case 2: mix<2, WIDTH, TOTAL>(weights, stride, values, size, sums, totals); break;
        case 3: mix<3, WIDTH, TOTAL>(weights, stride, values, size, sums, totals); break;
        default: mix<4, WIDTH, TOTAL>(weights, stride, values, size, sums, totals); break;
    }
}

// The same for `width` columns.
static void mix_columns(int count, const float * weights, int stride, const float * values, int size, int width, float * sums,
                        float * totals) {
    constexpr int MOST = Lanes::COUNT == 16 ? 4 : 2;  // registers of each query
    int           d    = 0;
    const auto    mixed = [&](auto registers, auto total) {
        mix_some<registers, total>(count, weights, stride, values + d, size, sums + d, totals);
        d += registers * Lanes::COUNT;
    };
    constexpr std::integral_constant<int, MOST> most;
    constexpr std::integral_constant<int, 2>    two;
    constexpr std::integral_constant<int, 1>    one;
    if (width >= MOST * Lanes::COUNT) {
        mixed(most, std::true_type());
    } else if (width >= 2 * Lanes::COUNT) {
        mixed(two, std::true_type());
    } else {
        mixed(one, std::true_type());
    }
    while (d + MOST * Lanes::COUNT <= width) {
        mixed(most, std::false_type());
    }
    while (d < width) {
        mixed(one, std::false_type());
    }
}

}  // namespace edgellm
