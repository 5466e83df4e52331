// The registers of an x86 CPU, a lane of 32 bits for each row of a matrix: 16 rows with AVX-512 VNNI, else 8.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace edgellm {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)

struct Lanes {
    static constexpr int COUNT = 16;  // lanes
    static constexpr int TILE  = 8;   // inputs at once, as registers allow
    using Integers             = __m512i;
    using Floats               = __m512;

    static Integers load(const void * bits) { return _mm512_loadu_si512(bits); }
    static Integers all(int32_t x) { return _mm512_set1_epi32(x); }
    static Integers bytes(uint8_t x) { return _mm512_set1_epi8(char(x)); }
    static Integers unsigned_bytes(const uint8_t * x) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) x)); }
    static Integers signed_bytes(const int8_t * x) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) x)); }
    static Integers both(Integers a, Integers b) { return _mm512_and_si512(a, b); }
    static Integers either(Integers a, Integers b) { return _mm512_or_si512(a, b); }
    static Integers left(Integers a, int bits) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
    static Integers right(Integers a, int bits) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits)); }

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats all(float x) { return _mm512_set1_ps(x); }
    static Floats floats(Integers x) { return _mm512_cvtepi32_ps(x); }
    static Floats halves(const uint16_t * x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) x)); }
    static Floats plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static void   store(float * to, Floats x) { _mm512_storeu_ps(to, x); }
    static Floats floats(const float * x) { return _mm512_loadu_ps(x); }
    static Floats minus(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    static Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
    static Floats above(Floats x, Floats y, Floats a, Floats b) {  // where x > y, a; else b
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GT_OQ), b, a);
    }
    static bool   any_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
    static float  largest(Floats x) { return _mm512_reduce_max_ps(x); }
    static float  first(Floats x) { return _mm512_cvtss_f32(x); }
    static Floats rounded(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Floats scaled(Floats x, Floats power) {  // x of about 1 times 2 to a power of at most 0; 0 far below
        const __mmask16 near = _mm512_cmp_ps_mask(power, _mm512_set1_ps(-120.0f), _CMP_GE_OQ);
        return _mm512_maskz_scalef_ps(near, x, power);
    }
    static bool   all_equal(const uint16_t * x, uint16_t y) {
        const __m256i same = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *) x), _mm256_set1_epi16(short(y)));
        return _mm256_movemask_epi8(same) == -1;
    }

    // Sixteen registers become others: the first numbers of all, the second ones, and so on. `a` is written over.
    static void turn(Floats * a, Floats * to) {
        Floats b[16];
        for (int i = 0; i < 16; i += 2) {
            b[i]     = _mm512_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            for (int j = 0; j < 2; j++) {
                const __m512d x = _mm512_castps_pd(b[i + j]), y = _mm512_castps_pd(b[i + j + 2]);
                a[i + 2 * j]     = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
            }
        }
        for (int j = 0; j < 4; j++) {  // of each quarter, number j of four lines; quarters of 16 lines come together
            const Floats x = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), y = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
            const Floats z = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88), w = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
            to[j]      = _mm512_shuffle_f32x4(x, z, 0x88);
            to[j + 4]  = _mm512_shuffle_f32x4(y, w, 0x88);
            to[j + 8]  = _mm512_shuffle_f32x4(x, z, 0xdd);
            to[j + 12] = _mm512_shuffle_f32x4(y, w, 0xdd);
        }
    }
};

#else

struct Lanes {
    static constexpr int COUNT = 8;
    static constexpr int TILE  = 4;
    using Integers             = __m256i;
    using Floats               = __m256;

    static Integers load(const void * bits) { return _mm256_loadu_si256((const __m256i *) bits); }
    static Integers all(int32_t x) { return _mm256_set1_epi32(x); }
    static Integers bytes(uint8_t x) { return _mm256_set1_epi8(char(x)); }
    static Integers unsigned_bytes(const uint8_t * x) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) x)); }
    static Integers signed_bytes(const int8_t * x) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) x)); }
    static Integers both(Integers a, Integers b) { return _mm256_and_si256(a, b); }
    static Integers either(Integers a, Integers b) { return _mm256_or_si256(a, b); }
    static Integers left(Integers a, int bits) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
    static Integers right(Integers a, int bits) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits)); }

    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats all(float x) { return _mm256_set1_ps(x); }
    static Floats floats(Integers x) { return _mm256_cvtepi32_ps(x); }
    static Floats halves(const uint16_t * x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) x)); }
    static Floats plus(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static void   store(float * to, Floats x) { _mm256_storeu_ps(to, x); }
    static Floats floats(const float * x) { return _mm256_loadu_ps(x); }
    static Floats minus(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
    static Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
    static Floats above(Floats x, Floats y, Floats a, Floats b) {  // where x > y, a; else b
        return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GT_OQ));
    }
    static bool   any_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
    static float  largest(Floats x) {
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        four        = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    }
    static float  first(Floats x) { return _mm256_cvtss_f32(x); }
    static Floats rounded(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Floats scaled(Floats x, Floats power) {  // x of about 1 times 2 to a power of at most 0; 0 far below
        const __m256i bits  = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_max_ps(power, _mm256_set1_ps(-200.0f))), 23);
        const __m256  moved = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), bits));
        return _mm256_and_ps(moved, _mm256_cmp_ps(power, _mm256_set1_ps(-120.0f), _CMP_GE_OQ));
    }
    static bool all_equal(const uint16_t * x, uint16_t y) {
        const __m128i same = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *) x), _mm_set1_epi16(short(y)));
        return _mm_movemask_epi8(same) == 0xffff;
    }

    // Eight registers become others: the first numbers of all, the second ones, and so on. `a` is written over.
    static void turn(Floats * a, Floats * to) {
        Floats b[8];
        for (int i = 0; i < 8; i += 2) {
            b[i]     = _mm256_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            for (int j = 0; j < 2; j++) {
                const __m256d x = _mm256_castps_pd(b[i + j]), y = _mm256_castps_pd(b[i + j + 2]);
                a[i + 2 * j]     = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
                a[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
            }
        }
        for (int j = 0; j < 4; j++) {
            to[j]     = _mm256_permute2f128_ps(a[j], a[j + 4], 0x20);
            to[j + 4] = _mm256_permute2f128_ps(a[j], a[j + 4], 0x31);
        }
    }
};

#endif

#if (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)) || defined(__AVXVNNI__)

// Signed codes lie so much higher; what a sum begins with takes it off again.
constexpr int LIFT = 128;

// In each lane a sum of products: four codes, unsigned bytes, times four signed bytes of an input at once.
template <int, bool> struct Sum {
    Lanes::Integers wide;

    Sum() = default;
    explicit Sum(int32_t start) : wide(Lanes::all(start)) {}

    void add(Lanes::Integers codes, int32_t input, int) {
#    if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
        wide = _mm512_dpbusd_epi32(wide, codes, _mm512_set1_epi32(input));
#    else
        wide = _mm256_dpbusd_avx_epi32(wide, codes, _mm256_set1_epi32(input));
#    endif
    }
    Lanes::Floats value() const { return Lanes::floats(wide); }
};

#else

constexpr int LIFT = 0;

// The same in two steps: pairs of products in 16 bits, of which DEPTH can be added up before they are full.
template <int DEPTH, bool SIGNED> struct Sum {
    __m256i wide, narrow;

    Sum() = default;
    explicit Sum(int32_t start) : wide(_mm256_set1_epi32(start)) {}

    // `done`: how many were added before.
    void add(__m256i codes, int32_t input, int done) {
        const __m256i x = _mm256_set1_epi32(input);
        const __m256i pairs =
            SIGNED ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)) : _mm256_maddubs_epi16(codes, x);
        narrow = done % DEPTH ? _mm256_add_epi16(narrow, pairs) : pairs;
        if ((done + 1) % DEPTH == 0) {
            wide = _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
        }
    }
    Lanes::Floats value() const { return Lanes::floats(wide); }
};

#endif

using Integers = Lanes::Integers;
using Floats   = Lanes::Floats;

// Eight integers, added up.
static inline int32_t total(__m256i x) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two  = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

}  // namespace edgellm
