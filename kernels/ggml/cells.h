// What attention computes of a tile of cells: scores of queries, a lane for each cell; weights; weighed values summed up.
#pragma once

#define GGML_COMMON_DECL_CPP  // block_q8_0, block_q4_0
#include "ggml-common.h"
#include "lanes.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace edgellm {

// The mask of a row. Cells from `whole` on do not fill a tile; theirs is filled up with such as nobody sees.
struct Mask {
    const ggml_fp16_t *cells, *tail;
    int                whole;

    const ggml_fp16_t * at(int tile) const { return tile < whole ? cells + tile : tail; }
};

// How the numbers of a key or value lie in memory: halves one after the other.
struct Halves {
    static const char * byte(const char * line, int at) { return line + at * sizeof(ggml_fp16_t); }
    static Floats       numbers(const char * line, int at) { return Lanes::halves((const uint16_t *) byte(line, at)); }
};

// Blocks of 32 signed bytes that share a scale.
struct Bytes {
    static const char * byte(const char * line, int at) {
        return line + at / QK8_0 * sizeof(block_q8_0) + offsetof(block_q8_0, qs) + at % QK8_0;
    }
    static Floats numbers(const char * line, int at) {
        const auto & block = ((const block_q8_0 *) line)[at / QK8_0];
        return Lanes::times(Lanes::floats(Lanes::signed_bytes(block.qs + at % QK8_0)), Lanes::all(_cvtsh_ss(block.d)));
    }
};

// Blocks of 32 codes of four bits, with a scale: the first 16 in the low halves of bytes, the others in the high ones.
struct Nibbles {
    static const char * byte(const char * line, int at) {
        return line + at / QK4_0 * sizeof(block_q4_0) + offsetof(block_q4_0, qs) + at % (QK4_0 / 2);
    }
    static Floats numbers(const char * line, int at) {
        const auto &   block = ((const block_q4_0 *) line)[at / QK4_0];
        const Integers both  = Lanes::unsigned_bytes(block.qs + at % (QK4_0 / 2));
        const Integers codes = Lanes::both(at % QK4_0 < QK4_0 / 2 ? both : Lanes::right(both, 4), Lanes::all(15));
        const Floats   d     = Lanes::all(_cvtsh_ss(block.d));
        return Lanes::times(Lanes::minus(Lanes::floats(codes), Lanes::all(8.0f)), d);
    }
};

// A tile of cells as it lies in memory: where the key, or the value, of each begins.
template <class Form> struct Tile {
    const char * lines[Lanes::COUNT];

    // Numbers of one cell from `at` on.
    Floats numbers(int cell, int at) const { return Form::numbers(lines[cell], at); }
    // Numbers `at` to `at` + Lanes::COUNT of all cells, as many registers with a lane for each cell.
    void turned(int at, Floats * to) const {
        Floats lanes[Lanes::COUNT];
        for (int i = 0; i < Lanes::COUNT; i++) {
            lanes[i] = numbers(i, at);
        }
        Lanes::turn(lanes, to);
    }
};

// The same in floats, for queries that go through it one after the other.
struct TurnedTile {
    const float * cells;  // [number][cell]

    void turned(int at, Floats * to) const {
        for (int i = 0; i < Lanes::COUNT; i++) {
            to[i] = Lanes::floats(cells + (at + i) * Lanes::COUNT);
        }
    }
};
struct FloatTile {
    const float * cells;  // [cell][number]
    int           size;

    Floats numbers(int cell, int at) const { return Lanes::floats(cells + cell * size + at); }
};

// Scores of COUNT queries for one tile of cells, before scale and mask.
template <int COUNT, class Keys> static void score(const Keys & keys, const float * queries, int size, float * scores, int stride) {
    Floats sums[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sums[i] = Lanes::zero();
    }
    for (int d = 0; d < size; d += Lanes::COUNT) {
        Floats k[Lanes::COUNT];
        keys.turned(d, k);
        for (int j = 0; j < Lanes::COUNT; j++) {
            for (int i = 0; i < COUNT; i++) {
                sums[i] = Lanes::fused(k[j], Lanes::all(queries[i * size + d + j]), sums[i]);
            }
        }
    }
    for (int i = 0; i < COUNT; i++) {
        Lanes::store(scores + i * stride, sums[i]);
    }
}

template <class Keys>
static void score_some(int count, const Keys & keys, const float * queries, int size, float * scores, int stride) {
    switch (count) {
        case 1: score<1>(keys, queries, size, scores, stride); break;
        case 2: score<2>(keys, queries, size, scores, stride); break;
        case 3: score<3>(keys, queries, size, scores, stride); break;
        case 4: score<4>(keys, queries, size, scores, stride); break;
        case 5: score<5>(keys, queries, size, scores, stride); break;
        case 6: score<6>(keys, queries, size, scores, stride); break;
        case 7: score<7>(keys, queries, size, scores, stride); break;
        default: score<8>(keys, queries, size, scores, stride); break;
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

// Weights of queries for the cells of a tile, and what they add to: `stride` floats from one query's weights to the next
// one's, `size` from one's sums.
struct Weighed {
    const float * weights;
    int           stride;
    float *       sums;
    int           size;
    float *       totals;
};

// Adds weights times values, WIDTH registers from number `at` on, to COUNT queries' sums; and the weights to totals.
template <int COUNT, int WIDTH, bool TOTAL, class Values> static void mix(const Weighed & to, const Values & values, int at) {
    Floats sum[COUNT][WIDTH], total[COUNT];
    for (int i = 0; i < COUNT; i++) {
        total[i] = Lanes::all(to.totals[i]);
        for (int j = 0; j < WIDTH; j++) {
            sum[i][j] = Lanes::floats(to.sums + i * to.size + at + j * Lanes::COUNT);
        }
    }
    for (int c = 0; c < Lanes::COUNT; c++) {
        Floats v[WIDTH];
        for (int j = 0; j < WIDTH; j++) {
            v[j] = values.numbers(c, at + j * Lanes::COUNT);
        }
        for (int i = 0; i < COUNT; i++) {
            const Floats w = Lanes::all(to.weights[i * to.stride + c]);
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
            to.totals[i] = Lanes::first(total[i]);
        }
        for (int j = 0; j < WIDTH; j++) {
            Lanes::store(to.sums + i * to.size + at + j * Lanes::COUNT, sum[i][j]);
        }
    }
}

template <int WIDTH, bool TOTAL, class Values>
static void mix_some(int count, const Weighed & to, const Values & values, int at) {
    switch (count) {
        case 1: mix<1, WIDTH, TOTAL>(to, values, at); break;
        case 2: mix<2, WIDTH, TOTAL>(to, values, at); break;
        case 3: mix<3, WIDTH, TOTAL>(to, values, at); break;
        default: mix<4, WIDTH, TOTAL>(to, values, at); break;
    }
}

// The same for columns `begin` to `end`, of at most FEW queries.
constexpr int FEW = 4;
template <class Values> static void mix_columns(int count, const Weighed & to, const Values & values, int begin, int end) {
    constexpr int MOST = Lanes::COUNT == 16 ? 4 : 2;  // registers of each query
    int           d    = begin;
    const auto    mixed = [&](auto registers, auto total) {
        mix_some<registers, total>(count, to, values, d);
        d += registers * Lanes::COUNT;
    };
    constexpr std::integral_constant<int, MOST> most;
    constexpr std::integral_constant<int, 2>    two;
    constexpr std::integral_constant<int, 1>    one;
    if (d + MOST * Lanes::COUNT <= end) {
        mixed(most, std::true_type());
    } else if (d + 2 * Lanes::COUNT <= end) {
        mixed(two, std::true_type());
    } else {
        mixed(one, std::true_type());
    }
    while (d + MOST * Lanes::COUNT <= end) {
        mixed(most, std::false_type());
    }
    while (d < end) {
        mixed(one, std::false_type());
    }
}

}  // namespace edgellm
