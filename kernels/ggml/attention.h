// Attention over keys and values in F16, Q8_0 or Q4_0 on x86 CPUs, a lane of the registers for each of several cells.
//
// llama.cpp goes through the cells one by one for fewer than 64 rows of a step, and in tiles for more, which rounds
// otherwise. Here every step goes the same way: Lanes::COUNT cells at a time are turned so that each has a lane, and queries
// of all heads that share keys are taken together. A query's result is made by the same operations in the same order
// whatever other queries there are, however many threads, and wherever its cells lie, as long as they lie in order:
//
//   - Weights are powers of two: 2^(t - e), t the score over ln 2, e a whole number near the largest. e is raised while cells
//     go by; what was summed before is then multiplied by a power of two, which rounds nothing. Weights too small for that
//     (2^-100) are rare: then all is summed once more, with the last e from the beginning.
//   - Weights and weighted values are summed cell by cell, in order. Cells that a query does not see add zero, whatever is in
//     them: sums that are no numbers are made once more, without those cells.
//
// Cells that no query of a block sees cost a look at the mask. With few queries, threads share scores by cells and sums by
// columns.
//
// Included by llama.cpp's ops.cpp, inside no namespace; needs what that file includes.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__GNUC__)

#    include "cells.h"

#    include <algorithm>
#    include <cmath>
#    include <cstring>
#    include <numeric>
#    include <vector>

namespace edgellm {

constexpr int   CHUNK  = 256;  // cells whose scores are known before they are weighed
constexpr int   QUERIES = 32;  // of one key head, taken together
constexpr int   COLUMNS = 32;  // of values, summed by one thread
constexpr int   AHEAD   = 32;  // cells: what is asked for so far ahead comes from memory in time
constexpr ggml_fp16_t HIDDEN = 0xfc00;  // minus infinity, in a mask
constexpr float LOG2E   = 1.44269504f;
constexpr float UNSEEN  = -1e30f;  // the score of a cell that the mask took away
constexpr float DEEP    = 100.0f;  // so far below the power, weights times the smallest halves are still multiples of 2^-149

// What an operation attends to, and its sizes.
struct Attention {
    const ggml_tensor *q, *k, *v, *mask;
    ggml_tensor *      out;
    float              scale;
    int                key, value;     // numbers of a key and of a value
    int                share;          // query heads to a key head
    int                queries;        // of a key head: rows times `share`, heads of a row beside each other
    int                cells, chunks;
    const ggml_fp16_t * tails = nullptr;  // [row][lane], where cells do not fill the last tile

    explicit Attention(ggml_tensor * op)
        : q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), out(op), key(int(k->ne[0])), value(int(v->ne[0])),
          share(int(q->ne[2] / k->ne[2])), queries(int(q->ne[1]) * share), cells(int(k->ne[1])),
          chunks((cells + CHUNK - 1) / CHUNK) {
        memcpy(&scale, op->op_params, sizeof(scale));
    }

    int row(int query) const { return query / share; }
    int head(int key_head, int query) const { return key_head * share + query % share; }

    const float * query_at(int key_head, int query) const {
        return (const float *) ((const char *) q->data + row(query) * q->nb[1] + head(key_head, query) * q->nb[2]);
    }
    // The tile from `cell` on, of k or v. Numbers `begin` to `end` will be read, and of later tiles too: memory is slow.
    template <class Form> Tile<Form> tile(const ggml_tensor * from, int key_head, int cell, int begin, int end) const {
        const auto at = [&](int c) {
            return (const char *) from->data + std::min(c, cells - 1) * from->nb[1] + key_head * from->nb[2];
        };
        Tile<Form> tile;
        for (int i = 0; i < Lanes::COUNT; i++) {
            tile.lines[i]      = at(cell + i);
            const char * ahead = at(cell + i + AHEAD);
            for (const char * line = Form::byte(ahead, begin); line < Form::byte(ahead, end); line += 64) {  // of the cache
                _mm_prefetch(line, _MM_HINT_T0);
            }
        }
        return tile;
    }
    Mask mask_of(int query) const {
        return { (const ggml_fp16_t *) ((const char *) mask->data + row(query) * mask->nb[1]),
                 tails ? tails + row(query) * Lanes::COUNT : nullptr, cells / Lanes::COUNT * Lanes::COUNT };
    }
    float * out_at(int key_head, int query) const {
        return (float *) ((char *) out->data + head(key_head, query) * out->nb[1] + row(query) * out->nb[2]);
    }
};

// Which tiles of a chunk each of some queries sees, and which any of them: a bit for each tile.
struct Sight {
    uint64_t of[QUERIES], any;

    void look(const Attention & a, int first, int count, int chunk) {
        const int from = chunk * CHUNK, cells = std::min(CHUNK, a.cells - from);
        any            = 0;
        for (int i = 0; i < count; i++) {
            if (i && a.row(first + i) == a.row(first + i - 1)) {
                of[i] = of[i - 1];
                continue;
            }
            const Mask mask = a.mask_of(first + i);
            of[i]           = 0;
            for (int c = 0, tile = 0; c < cells; c += Lanes::COUNT, tile++) {
                of[i] |= uint64_t(!Lanes::all_equal(mask.at(from + c), HIDDEN)) << tile;
            }
            any |= of[i];
        }
    }

    // Runs `work` on those of `count` queries that see the tile from cell c on: the first, and how many beside each other.
    template <class Work> void each_run(int c, int count, Work work) const {
        const auto sees = [&](int i) { return i < count && of[i] >> c / Lanes::COUNT & 1; };
        for (int i = 0; i < count; i++) {
            const int begin = i;
            while (sees(i)) {
                i++;
            }
            if (i > begin) {
                work(begin, i - begin);
            }
        }
    }
};

// Runs `work` on the first cell of each of these tiles.
template <class Work> static void each_tile(uint64_t tiles, Work work) {
    for (int c = 0; tiles; c += Lanes::COUNT, tiles >>= 1) {
        if (tiles & 1) {
            work(c);
        }
    }
}

// Floats that begin where a line of the cache does: registers of 64 bytes are read and written in one go.
class Buffer {
    struct alignas(64) Line {
        float floats[16];
    };
    std::vector<Line> lines;

  public:
    void    resize(int floats) { lines.resize((floats + 15) / 16); }
    float * data() { return lines.empty() ? nullptr : lines[0].floats; }
};

// A thread's memory for one block of queries and one chunk of cells.
struct Scratch {
    Sight  sight;
    Buffer queries, keys, values, scores, sums;
    std::vector<ggml_fp16_t> tails;
    float              most[QUERIES], least[QUERIES], power[QUERIES], total[QUERIES];
    bool               wary = false;  // of values that are no numbers, in cells that not all queries see

    void fit(const Attention & a) {
        queries.resize(QUERIES * a.key);
        keys.resize(Lanes::COUNT * a.key);
        values.resize(Lanes::COUNT * a.value);
        scores.resize(QUERIES * CHUNK);
        sums.resize(QUERIES * a.value);
    }

    // Masks of a last tile that cells do not fill: nobody sees what is missing.
    void fill_tails(Attention & a) {
        const int rows = int(a.q->ne[1]), left = a.cells % Lanes::COUNT;
        if (left == 0) {
            return;
        }
        tails.assign(rows * Lanes::COUNT, HIDDEN);
        for (int row = 0; row < rows; row++) {
            const char * mask = (const char *) a.mask->data + row * a.mask->nb[1];
            memcpy(&tails[row * Lanes::COUNT], mask + (a.cells - left) * sizeof(ggml_fp16_t), left * sizeof(ggml_fp16_t));
        }
        a.tails = tails.data();
    }
};

// Scores of a chunk as powers of two: scaled, masked, over ln 2. Finds the largest, which is NaN if a cell that is seen has a
// score that is no number, and the least.
static void mask_scores(const Attention & a, int query, int from, uint64_t seen, float * scores, float & largest, float & least) {
    const Mask   mask  = a.mask_of(query);
    const Floats scale = Lanes::all(a.scale * LOG2E);
    const Floats none  = Lanes::all(UNSEEN);
    Floats       most  = none, deepest = none, odd = Lanes::zero();
    each_tile(seen, [&](int c) {
        const Floats shift = Lanes::times(Lanes::halves(mask.at(from + c)), Lanes::all(LOG2E));
        const Floats t     = Lanes::above(shift, none, Lanes::fused(Lanes::floats(scores + c), scale, shift), none);
        Lanes::store(scores + c, t);
        most    = Lanes::larger(t, most);  // of NaN and `most`, the latter
        deepest = Lanes::larger(Lanes::above(shift, none, Lanes::minus(Lanes::zero(), t), none), deepest);
        odd     = Lanes::fused(t, Lanes::zero(), odd);
    });
    largest = Lanes::any_nan(odd) ? NAN : Lanes::largest(most);
    least   = -Lanes::largest(deepest);
}

// A query's power after a chunk with this largest score. NaN stays.
static float raised(float power, float most) {
    const float whole = nearbyintf(most);
    return whole <= power || std::isnan(power) ? power : whole;
}

// Scores of a chunk become weights.
static void weigh_tiles(uint64_t seen, float * scores, float power) {
    each_tile(seen, [&](int c) {
        if (power > UNSEEN) {
            weigh(scores + c, power);
        } else {  // the query has seen nothing so far, or what is no number
            Lanes::store(scores + c, Lanes::all(std::isnan(power) ? power : 0.0f));
        }
    });
}

// Scores of `count` queries from `first` on for one chunk of cells, `stride` floats from one query's to the next one's;
// the largest of each; and which tiles they see.
template <class Form>
static void score_chunk(const Attention & a, Scratch & s, int key_head, int first, int count, int chunk, float * scores,
                        int stride) {
    const int from = chunk * CHUNK;
    s.sight.look(a, first, count, chunk);
    each_tile(s.sight.any, [&](int c) {
        const auto tile = a.tile<Form>(a.k, key_head, from + c, 0, a.key);
        bool       kept = false;  // in s.keys
        s.sight.each_run(c, count, [&](int begin, int queries) {
            const float * query = s.queries.data() + begin * a.key;
            float *       to    = scores + begin * stride + c;
            if (queries <= FEW) {
                score_some(queries, tile, query, a.key, to, stride);
                return;
            }
            for (int d = 0; d < a.key && !kept; d += Lanes::COUNT) {
                Floats k[Lanes::COUNT];
                tile.turned(d, k);
                for (int i = 0; i < Lanes::COUNT; i++) {
                    Lanes::store(s.keys.data() + (d + i) * Lanes::COUNT, k[i]);
                }
            }
            kept = true;
            for (int i = 0; i < queries; i += 8) {
                score_some(std::min(8, queries - i), TurnedTile{ s.keys.data() }, query + i * a.key, a.key, to + i * stride, stride);
            }
        });
    });
    for (int i = 0; i < count; i++) {
        mask_scores(a, first + i, from, s.sight.of[i], scores + i * stride, s.most[i], s.least[i]);
    }
}

// The values of a tile of cells, columns `begin` to `end`; zero where there is a mask that takes a cell away.
template <class Form>
static void take_values(const Attention & a, Scratch & s, const Tile<Form> & tile, int begin, int end, const ggml_fp16_t * mask) {
    for (int i = 0; i < Lanes::COUNT; i++) {
        const bool none = mask && mask[i] == HIDDEN;
        for (int d = begin; d < end; d += Lanes::COUNT) {
            Lanes::store(s.values.data() + i * a.value + d, none ? Lanes::zero() : tile.numbers(i, d));
        }
    }
}

// Adds the weighed values of a chunk's visible tiles, columns `begin` to `end`.
template <class Form>
static void mix_chunk(const Attention & a, Scratch & s, int key_head, int first, int count, int chunk, const float * weights,
                      int stride, int begin, int end) {
    const int from = chunk * CHUNK;
    each_tile(s.sight.any, [&](int c) {
        const auto      tile = a.tile<Form>(a.v, key_head, from + c, begin, end);
        const FloatTile floats{ s.values.data(), a.value };
        const auto      to = [&](int i) {
            return Weighed{ weights + i * stride + c, stride, s.sums.data() + i * a.value, a.value, s.total + i };
        };
        bool kept = false;  // in s.values
        s.sight.each_run(c, count, [&](int query, int queries) {
            for (int i = query; i < query + queries && s.wary; i++) {
                take_values(a, s, tile, begin, end, a.mask_of(first + i).at(from + c));
                mix_columns(1, to(i), floats, begin, end);
            }
            if (s.wary) {
                return;
            }
            if (queries <= FEW) {
                mix_columns(queries, to(query), tile, begin, end);
                return;
            }
            if (!kept) {
                take_values(a, s, tile, begin, end, nullptr);
                kept = true;
            }
            for (int i = 0; i < queries; i += FEW) {
                mix_columns(std::min(FEW, queries - i), to(query + i), floats, begin, end);
            }
        });
    });
}

// Runs `sum` for columns `begin` to `end`: once more, warily, if the sums are no numbers.
template <class Work> static void sum_warily(const Attention & a, Scratch & s, int count, int begin, int end, Work sum) {
    sum();
    Floats odd = Lanes::zero();
    for (int i = 0; i < count; i++) {
        for (int d = begin; d < end; d += Lanes::COUNT) {
            odd = Lanes::fused(Lanes::floats(s.sums.data() + i * a.value + d), Lanes::zero(), odd);
        }
    }
    if (Lanes::any_nan(odd)) {
        s.wary = true;
        sum();
        s.wary = false;
    }
}

static void begin_sums(const Attention & a, Scratch & s, int count) {
    std::fill_n(s.total, count, 0.0f);
    std::fill_n(s.sums.data(), count * a.value, 0.0f);
}

static void finish_sums(const Attention & a, Scratch & s, int key_head, int first, int count, int begin, int end) {
    for (int i = 0; i < count; i++) {
        const Floats share = Lanes::all(s.total[i] == 0.0f ? 0.0f : 1.0f / s.total[i]);
        for (int d = begin; d < end; d += Lanes::COUNT) {
            Lanes::store(a.out_at(key_head, first + i) + d, Lanes::times(Lanes::floats(s.sums.data() + i * a.value + d), share));
        }
    }
}

static void take_queries(const Attention & a, Scratch & s, int key_head, int first, int count) {
    for (int i = 0; i < count; i++) {
        memcpy(s.queries.data() + i * a.key, a.query_at(key_head, first + i), a.key * sizeof(float));
    }
}

// From powers on that may be too low. Returns whether one was, and a weight so small that it got lost or not, as it came.
template <class Form> static bool sum_whole(const Attention & a, Scratch & s, int key_head, int first, int count) {
    float * scores = s.scores.data();
    float   least[QUERIES];
    bool    rose[QUERIES] = {}, lost = false;
    begin_sums(a, s, count);
    std::fill_n(least, count, -UNSEEN);
    for (int chunk = 0; chunk < a.chunks; chunk++) {
        score_chunk<Form>(a, s, key_head, first, count, chunk, scores, CHUNK);
        for (int i = 0; i < count; i++) {
            const float power = raised(s.power[i], s.most[i]);
            least[i]          = std::min(least[i], s.least[i]);
            if (power > s.power[i] && s.power[i] > UNSEEN) {
                rose[i]          = true;
                const float fall = power - s.power[i] < 120.0f ? ldexpf(1.0f, int(s.power[i] - power)) : 0.0f;
                float *     sums = s.sums.data() + i * a.value;
                for (int d = 0; d < a.value; d += Lanes::COUNT) {
                    Lanes::store(sums + d, Lanes::times(Lanes::floats(sums + d), Lanes::all(fall)));
                }
                s.total[i] *= fall;
            }
            s.power[i] = power;
            weigh_tiles(s.sight.of[i], scores + i * CHUNK, power);
        }
        mix_chunk<Form>(a, s, key_head, first, count, chunk, scores, CHUNK, 0, a.value);
    }
    for (int i = 0; i < count; i++) {
        lost |= rose[i] && least[i] < s.power[i] - DEEP;
    }
    return lost;
}

// A block of queries, all chunks.
template <class Form> static void whole(const Attention & a, Scratch & s, int key_head, int first, int count) {
    take_queries(a, s, key_head, first, count);
    std::fill_n(s.power, count, UNSEEN);
    sum_warily(a, s, count, 0, a.value, [&] {
        if (sum_whole<Form>(a, s, key_head, first, count)) {
            sum_whole<Form>(a, s, key_head, first, count);
        }
    });
    finish_sums(a, s, key_head, first, count, 0, a.value);
}

// Runs `work` on 0 to `count` - 1: many, taken by threads as they get ready; few, dealt out, which needs no meeting before.
template <class Work> static void each(const ggml_compute_params * params, int count, Work work) {
    if (count < 16 * params->nth) {
        for (int i = params->ith; i < count; i += params->nth) {
            work(i);
        }
        return;
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int i = params->ith; i < count; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        work(i);
    }
}

// Few queries: threads share their scores by chunks of cells, then their sums by columns.
template <class Form>
static void divided(const ggml_compute_params * params, const Attention & a, Scratch & s, int heads, int blocks) {
    const int stride = a.chunks * CHUNK;
    float *   scores = (float *) params->wdata;  // [key head][query][cell]
    float *   most   = scores + int64_t(heads) * a.queries * stride;  // [key head][query][chunk]
    const int parts  = (a.value + COLUMNS - 1) / COLUMNS;

    const auto on_chunks = [&](auto work) {
        each(params, heads * blocks * a.chunks, [&](int unit) {
            const int chunk = unit % a.chunks, block = unit / a.chunks % blocks, key_head = unit / a.chunks / blocks;
            const int first = block * QUERIES;
            work(key_head, first, std::min(QUERIES, a.queries - first), chunk);
        });
        ggml_barrier(params->threadpool);
    };
    on_chunks([&](int key_head, int first, int count, int chunk) {
        const int64_t at = key_head * a.queries + first;
        take_queries(a, s, key_head, first, count);
        score_chunk<Form>(a, s, key_head, first, count, chunk, scores + at * stride + chunk * CHUNK, stride);
        for (int i = 0; i < count; i++) {
            most[(at + i) * a.chunks + chunk] = s.most[i];
        }
    });
    on_chunks([&](int key_head, int first, int count, int chunk) {
        s.sight.look(a, first, count, chunk);
        for (int i = 0; i < count; i++) {
            const int64_t at = key_head * a.queries + first + i;
            const float   power = std::accumulate(most + at * a.chunks, most + (at + 1) * a.chunks, UNSEEN, raised);
            weigh_tiles(s.sight.of[i], scores + at * stride + chunk * CHUNK, power);
        }
    });
    each(params, heads * blocks * parts, [&](int unit) {
        const int part = unit % parts, block = unit / parts % blocks, key_head = unit / parts / blocks;
        const int first = block * QUERIES, count = std::min(QUERIES, a.queries - first);
        const int begin = part * COLUMNS, end = std::min(a.value, begin + COLUMNS);
        sum_warily(a, s, count, begin, end, [&] {
            begin_sums(a, s, count);
            for (int chunk = 0; chunk < a.chunks; chunk++) {
                s.sight.look(a, first, count, chunk);
                mix_chunk<Form>(a, s, key_head, first, count, chunk, scores + int64_t(key_head * a.queries + first) * stride + chunk * CHUNK,
                          stride, begin, end);
            }
        });
        finish_sums(a, s, key_head, first, count, begin, end);
    });
}

// Whether the operation is of the kind that is done here, over cells of one form.
static bool attends(const ggml_tensor * op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    float              bias, cap;
    memcpy(&bias, (const float *) op->op_params + 1, sizeof(bias));
    memcpy(&cap, (const float *) op->op_params + 2, sizeof(cap));
    return mask && !op->src[4] && bias == 0.0f && cap == 0.0f && q->type == GGML_TYPE_F32 && k->type == v->type &&
           mask->type == GGML_TYPE_F16 && q->ne[3] == 1 && mask->ne[2] == 1 && mask->ne[3] == 1 && k->ne[2] == v->ne[2] &&
           q->ne[2] % k->ne[2] == 0 && k->ne[0] % Lanes::COUNT == 0 && v->ne[0] % Lanes::COUNT == 0 &&
           op->nb[0] == sizeof(float);
}

template <class Form> static void attend(const ggml_compute_params * params, ggml_tensor * op) {
    static thread_local Scratch scratch;
    Attention                   a(op);
    scratch.fit(a);
    scratch.fill_tails(a);
    const int    heads = int(a.k->ne[2]), blocks = (a.queries + QUERIES - 1) / QUERIES;
    const size_t wanted = size_t(heads) * a.queries * a.chunks * (CHUNK + 1) * sizeof(float);
    if (params->nth > 1 && a.chunks > 1 && heads * blocks < 4 * params->nth && wanted <= params->wsize) {
        divided<Form>(params, a, scratch, heads, blocks);
        return;
    }
    each(params, heads * blocks, [&](int unit) {
        const int first = unit % blocks * QUERIES;
        whole<Form>(a, scratch, unit / blocks, first, std::min(QUERIES, a.queries - first));
    });
}

}  // namespace edgellm

// By this edgellm recognises a library that has this attention, without loading it.
extern "C" __attribute__((used, visibility("default"))) const char edgellm_cells[] = "edgellm: a lane for each cell, F16, Q8_0 or Q4_0";

// Computes the operation and returns true, or leaves it to llama.cpp.
static bool edgellm_attention(const ggml_compute_params * params, ggml_tensor * op) {
    using namespace edgellm;
    if (params->use_ref || !attends(op)) {
        return false;
    }
    switch (op->src[1]->type) {
        case GGML_TYPE_F16: attend<Halves>(params, op); return true;
        case GGML_TYPE_Q8_0: attend<Bytes>(params, op); return true;
        case GGML_TYPE_Q4_0: attend<Nibbles>(params, op); return true;
        default: return false;
    }
}

#else

static bool edgellm_attention(const ggml_compute_params *, ggml_tensor *) {
    return false;
}

#endif
