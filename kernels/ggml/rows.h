// Quantised matrices on x86 CPUs, sixteen rows side by side: a lane of the registers for each.
//
// llama.cpp multiplies most types row by row, with a sum over lanes for each product, and has kernels for several inputs
// for few of them. Here a block of weights is unpacked once for up to TILE inputs, and lanes are never added up. Every
// product is made by the same operations in the same order, however many inputs there are, and wherever an input stands:
// results do not depend on company, to the last bit.
//
// Included by llama.cpp's repack.cpp, inside no namespace; needs what that file includes.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__GNUC__)

#    include "kinds.h"

#    include <algorithm>
#    include <atomic>
#    include <cmath>
#    include <limits>

namespace edgellm {

constexpr int BLOCK = 32;  // numbers of an input that share a scale
constexpr float SMALLEST = 1e-36f;  // less is nothing: the quotient with it would be infinite
constexpr float LARGEST  = std::numeric_limits<float>::max();
constexpr int PART  = 64;  // inputs for which the rows are gone through at once: they stay in the L2 cache
constexpr int AHEAD_BYTES = 8192;  // of weights: what is asked for so far ahead comes from memory in time

// A block of an input: bytes q with a scale d, the sums of their halves, and d times both.
struct Input {
    float   d;
    float   sum;
    int32_t halves[2];
    int8_t  q[BLOCK];
};

static inline __m256i rounded(const float * x, __m256 scale) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
}

// The first `count` blocks of x. All products of a block with NaN or an infinity become NaN.
static void quantise(const float * x, Input * to, int count) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i order     = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes what packing does to the two halves
    for (int b = 0; b < count; b++, x += BLOCK) {
        __m256i largest = _mm256_setzero_si256();  // as bits, of which NaN has more than infinity has, and that than numbers
        for (int i = 0; i < BLOCK; i += 8) {
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_loadu_si256((const __m256i *) (x + i)), magnitude));
        }
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
        four         = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        const float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
        if (!(most > SMALLEST && most <= LARGEST)) {
            memset(&to[b], 0, sizeof(Input));
            to[b].d = to[b].sum = most <= LARGEST ? 0.0f : NAN;
            continue;
        }
        const __m256 scale = _mm256_set1_ps(127.0f / most);

        const __m256i a = rounded(x, scale), c = rounded(x + 8, scale), e = rounded(x + 16, scale), f = rounded(x + 24, scale);
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, c), _mm256_packs_epi32(e, f));
        _mm256_storeu_si256((__m256i *) to[b].q, _mm256_permutevar8x32_epi32(packed, order));
        to[b].d         = most / 127.0f;
        to[b].halves[0] = total(_mm256_add_epi32(a, c));
        to[b].halves[1] = total(_mm256_add_epi32(e, f));
        to[b].sum       = to[b].d * float(to[b].halves[0] + to[b].halves[1]);
    }
}

// Asks for the part of memory that lies AHEAD_BYTES after `size` bytes.
static inline void ask_ahead(const void * from, size_t size) {
    for (size_t at = 0; at < size; at += 64) {  // lines of the cache
        _mm_prefetch((const char *) from + AHEAD_BYTES + at, _MM_HINT_T0);
    }
}

static inline int32_t four(const int8_t * q) {
    int32_t bits;
    memcpy(&bits, q, sizeof(bits));
    return bits;
}

// COUNT inputs times the rows of `packed` from lane `first` on, over `blocks` blocks of the file. `fresh`: they come from
// memory, and more after them.
template <class Kind, int COUNT>
static void multiply(const typename Kind::Packed * packed, int first, bool fresh, const Input * const * inputs, int blocks,
                     float * const * to) {
    using Total = Sum<Kind::DEPTH, Kind::SIGNED>;
    Floats scaled[COUNT], shifted[COUNT];
    Total  sums[COUNT], highs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        scaled[i] = shifted[i] = Lanes::zero();
    }
    int at = 0;
    for (int b = 0; b < blocks; b++) {
        if (fresh) {
            ask_ahead(packed + b, sizeof(packed[b]));
        }
        typename Kind::Reader reader(packed[b], first);
        for (int j = 0; j < Kind::SUBS; j++, at++) {
            reader.open(j);
            for (int i = 0; i < COUNT; i++) {
                const Input & x = inputs[i][at];
                sums[i]         = Total(-Kind::BIAS * (Kind::HALVES ? x.halves[0] : x.halves[0] + x.halves[1]));
                highs[i]        = Total(Kind::HALVES ? -Kind::BIAS * x.halves[1] : 0);
            }
#    pragma GCC unroll 4
            for (int g = 0; g < 4; g++) {
                Integers low, high;
                reader.codes(g, low, high);
                for (int i = 0; i < COUNT; i++) {
                    const int8_t * q = inputs[i][at].q + 4 * g;
                    if constexpr (Kind::HALVES) {
                        sums[i].add(low, four(q), g);
                        highs[i].add(high, four(q + BLOCK / 2), g);
                    } else {
                        sums[i].add(low, four(q), 2 * g);
                        sums[i].add(high, four(q + BLOCK / 2), 2 * g + 1);
                    }
                }
            }
            for (int i = 0; i < COUNT; i++) {
                const Input & x = inputs[i][at];
                const Floats  d = Lanes::all(x.d);
                scaled[i]       = Lanes::fused(sums[i].value(), Lanes::times(reader.scale, d), scaled[i]);
                if constexpr (Kind::HALVES) {
                    scaled[i] = Lanes::fused(highs[i].value(), Lanes::times(reader.high_scale, d), scaled[i]);
                }
                if constexpr (Kind::SHIFTED) {
                    shifted[i] = Lanes::fused(reader.shift, Lanes::all(x.sum), shifted[i]);
                }
            }
        }
    }
    for (int i = 0; i < COUNT; i++) {
        Lanes::store(to[i] + first, Lanes::plus(scaled[i], shifted[i]));
    }
}

// How many pieces of a thread's part of the rows are taken.
struct alignas(64) Taken {
    std::atomic<int64_t> pieces;
};

// Which products are asked for: of all inputs with one matrix, or of a mixture of experts, each input with the matrices of the
// experts it is sent to. A product is numbered by its place in the output.
class Asked {
    int32_t * memory;
    int64_t   experts;

    static int64_t products(const ggml_tensor * op) { return op->ne[1] * op->ne[2]; }

  public:
    static size_t size(const ggml_tensor * op) { return (2 * op->src[0]->ne[2] + 2 + products(op)) * sizeof(int32_t); }

    Asked(void * memory, const ggml_tensor * op) : memory((int32_t *) memory), experts(op->src[0]->ne[2]) {}

    int32_t & count() const { return memory[0]; }  // of experts that are asked
    int32_t * active() const { return memory + 1; }  // those
    int32_t * begin() const { return active() + experts; }  // [expert]: where its products begin in the order; and the end
    int32_t * order() const { return begin() + experts + 1; }  // of products, by expert

    // One thread calls this before the others read.
    void sort(const ggml_tensor * op) const {
        const ggml_tensor * ids    = op->op == GGML_OP_MUL_MAT_ID ? op->src[2] : nullptr;  // [token][expert of the token]
        const auto          expert = [&](int64_t product) {
            const int64_t token = product / op->ne[1], which = product % op->ne[1];
            const int32_t e = ids ? *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + which * ids->nb[0]) : 0;
            GGML_ASSERT(e >= 0 && e < experts);
            return e;
        };
        std::fill_n(begin(), experts + 1, 0);
        for (int64_t i = 0; i < products(op); i++) {
            begin()[expert(i)]++;
        }
        count() = 0;
        for (int64_t e = 0; e < experts; e++) {
            if (begin()[e]) {
                active()[count()++] = int32_t(e);
            }
            begin()[e + 1] += begin()[e];  // the end of e
        }
        for (int64_t i = products(op) - 1; i >= 0; i--) {
            order()[--begin()[expert(i)]] = int32_t(i);
        }
    }
};

template <class Kind> class Rows : public ggml::cpu::repack::tensor_traits_base {
    static constexpr int NUMBERS = Kind::SUBS * BLOCK;  // of a block of the file
    using Packed                 = typename Kind::Packed;
    static_assert(sizeof(Packed) == ROWS * sizeof(typename Kind::Block), "rows move, their size stays");

    static bool multiplies(const ggml_tensor * op) { return op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID; }

    static size_t inputs_size(const ggml_tensor * op) { return ggml_nelements(op->src[1]) / BLOCK * sizeof(Input); }

    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        if (!multiplies(op)) {
            return false;
        }
        size = (threads + 1) * sizeof(Taken) + inputs_size(op) + Asked::size(op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (!multiplies(op)) {
            return false;
        }
        const ggml_tensor * matrix = op->src[0];
        const ggml_tensor * x      = op->src[1];
        GGML_ASSERT(x->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float) && x->nb[0] == sizeof(float));
        GGML_ASSERT(matrix->ne[3] == 1 && x->ne[3] == 1 && (matrix->ne[2] == 1 || op->op == GGML_OP_MUL_MAT_ID));

        const int threads = params->nth, own = params->ith;
        Taken *   taken   = (Taken *) ((uintptr_t(params->wdata) + sizeof(Taken) - 1) / sizeof(Taken) * sizeof(Taken));
        Input *   inputs  = (Input *) (taken + threads);
        const Asked asked((char *) inputs + inputs_size(op), op);
        GGML_ASSERT((threads + 1) * sizeof(Taken) + inputs_size(op) + Asked::size(op) <= params->wsize);
        taken[own].pieces = 0;
        if (own == 0) {
            asked.sort(op);
        }

        // A thread takes its share of every input: often there is but one.
        const int blocks = int(matrix->ne[0] / BLOCK), begin = blocks * own / threads, end = blocks * (own + 1) / threads;
        for (int64_t i = 0; i < x->ne[1] * x->ne[2]; i++) {
            const char * row = (const char *) x->data + i % x->ne[1] * x->nb[1] + i / x->ne[1] * x->nb[2];
            quantise((const float *) row + begin * BLOCK, inputs + i * blocks + begin, end - begin);
        }
        ggml_barrier(params->threadpool);

        // A thread goes through rows of its own, one stream from memory; then it takes pieces that others have not got to.
        const int64_t groups = matrix->ne[1] / ROWS * asked.count(), piece = std::max<int64_t>(1, groups / (4 * threads));
        for (int i = 0; i < threads; i++) {
            const int     whose = (own + i) % threads;
            const int64_t last  = groups * (whose + 1) / threads;
            int64_t       at;
            while ((at = groups * whose / threads + taken[whose].pieces.fetch_add(1) * piece) < last) {
                some(op, inputs, asked, at, std::min(last, at + piece));
            }
        }
        return true;
    }

    // Groups of rows, numbered through the experts that are asked, times all inputs of each.
    static void some(ggml_tensor * op, const Input * inputs, const Asked & asked, int64_t from, int64_t until) {
        const int64_t groups = op->src[0]->ne[1] / ROWS;
        while (from < until) {
            const int64_t  expert = asked.active()[from / groups], end = std::min(until, (from / groups + 1) * groups);
            const Packed * matrix = (const Packed *) op->src[0]->data + expert * groups * (op->src[0]->ne[0] / NUMBERS);
            const int32_t  first = asked.begin()[expert], last = asked.begin()[expert + 1];
            for (int32_t at = first; at < last; at += PART) {
                for (int64_t group = from; group < end; group++) {
                    part(op, inputs, matrix, group % groups, asked.order() + at, std::min(PART, last - at), at == first);
                }
            }
            from = end;
        }
    }

    // One group of rows times some inputs.
    static void part(ggml_tensor * op, const Input * inputs, const Packed * matrix, int64_t group, const int32_t * products,
                     int count, bool fresh) {
        const int           blocks = int(op->src[0]->ne[0] / NUMBERS);
        const ggml_tensor * given  = op->src[1];
        const Packed *      packed = matrix + group * blocks;
        for (int done = 0, size; done < count; done += size, fresh = false) {
            const Input * x[Lanes::TILE];
            float *       to[Lanes::TILE];
            const int     left = count - done;
            size               = left >= Lanes::TILE ? Lanes::TILE : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            for (int i = 0; i < size; i++) {
                const int64_t column = products[done + i] % op->ne[1], token = products[done + i] / op->ne[1];
                x[i]  = inputs + (column % given->ne[1] + token * given->ne[1]) * blocks * Kind::SUBS;
                to[i] = (float *) ((char *) op->data + column * op->nb[1] + token * op->nb[2]) + group * ROWS;
            }
            for (int first = 0; first < ROWS; first += Lanes::COUNT) {
                const bool ask = fresh && first == 0;
                switch (size) {
                    case 1: multiply<Kind, 1>(packed, first, ask, x, blocks, to); break;
                    case 2: multiply<Kind, 2>(packed, first, ask, x, blocks, to); break;
                    case 4: multiply<Kind, 4>(packed, first, ask, x, blocks, to); break;
                    default: multiply<Kind, Lanes::TILE>(packed, first, ask, x, blocks, to); break;
                }
            }
        }
    }

  public:
    int repack(ggml_tensor * t, const void * data, size_t size) override {
        GGML_ASSERT(size == ggml_nbytes(t));
        const auto *  from   = (const typename Kind::Block *) data;
        Packed *      to     = (Packed *) t->data;
        const int64_t blocks = t->ne[0] / NUMBERS;
        for (int64_t group = 0; group < t->ne[1] * t->ne[2] / ROWS; group++, from += ROWS * blocks) {
            for (int64_t b = 0; b < blocks; b++, to++) {
                for (int row = 0; row < ROWS; row++) {
                    Kind::pack(*to, row, from[row * blocks + b]);
                }
            }
        }
        return 0;
    }
};

}  // namespace edgellm

// By this edgellm recognises a library that has these kernels (`repacking.py`), without loading it.
extern "C" __attribute__((used, visibility("default"))) const char edgellm_rows[] = "edgellm: rows side by side";

static const ggml::cpu::tensor_traits * edgellm_traits(const ggml_tensor * t) {
    using namespace edgellm;
    static const Rows<Q4_0> q4_0;
    static const Rows<Q4_1> q4_1;
    static const Rows<Q8_0> q8_0;
    static const Rows<Q4_K> q4_k;
    static const Rows<Q5_K> q5_k;
    static const Rows<Q6_K> q6_k;
    if (t->ne[1] % ROWS || t->ne[3] != 1) {
        return nullptr;
    }
    switch (t->type) {
        case GGML_TYPE_Q4_0: return &q4_0;
        case GGML_TYPE_Q4_1: return &q4_1;
        case GGML_TYPE_Q8_0: return &q8_0;
        case GGML_TYPE_Q4_K: return &q4_k;
        case GGML_TYPE_Q5_K: return &q5_k;
        case GGML_TYPE_Q6_K: return &q6_k;
        default: return nullptr;
    }
}

#else

static const ggml::cpu::tensor_traits * edgellm_traits(const ggml_tensor *) {
    return nullptr;
}

#endif
