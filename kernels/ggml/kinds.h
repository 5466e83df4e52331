// How ROWS rows of each tensor type lie side by side, and how a block of 32 weights of each is unpacked.
//
// A kind has
//   Block, Packed    what one row has in the file, and what ROWS rows have here: the same size
//   pack             puts row `row` into its place
//   SUBS             blocks of 32 weights in one of the file
//   BIAS             stored codes are higher by it than what they stand for
//   SIGNED           codes may be negative, where BIAS is 0
//   DEPTH            pairs of products with an input (127 at most) that fit in 16 bits together: 2, 4 or 8; 1 of signed ones
//   HALVES           the two halves of 32 weights have a scale each
//   SHIFTED          weights have a part that the code does not change
//   Reader           unpacks: `open` a block of 32, then `codes` of groups 0 to 3; scales in between
//
// Group g of 32 weights: the weights 4 g to 4 g + 3 ("low") and those 16 further on ("high"), a byte each, and a lane for
// each row. Codes of four bits keep both in one byte.
#pragma once

#include "lanes.h"

namespace edgellm {

constexpr int ROWS  = 16;  // of a matrix, side by side
constexpr int GROUP = 4 * ROWS;

static inline uint32_t word(const uint8_t * bytes, int index) {
    uint32_t bits;
    memcpy(&bits, bytes + 4 * index, sizeof(bits));
    return bits;
}

static inline void put(uint8_t * plane, int group, int row, uint32_t bits) {
    memcpy(plane + GROUP * group + 4 * row, &bits, sizeof(bits));
}

constexpr uint32_t LOW  = 0x0f0f0f0f;
constexpr uint32_t HIGH = 0xf0f0f0f0;

// Group g of codes of four bits, from lane `first` on.
static inline void halves(const uint8_t * plane, int g, int first, Integers & low, Integers & high) {
    const Integers both = Lanes::load(plane + GROUP * g + 4 * first), four = Lanes::bytes(15);
    low = Lanes::both(both, four), high = Lanes::both(Lanes::right(both, 4), four);
}

struct Q4_0 {
    using Block                   = block_q4_0;
    static constexpr int  SUBS    = 1;
    static constexpr int  BIAS    = 8;
    static constexpr int  DEPTH   = 8;
    static constexpr bool HALVES  = false;
    static constexpr bool SHIFTED = false;
    static constexpr bool SIGNED  = false;

    struct Packed {
        ggml_half d[ROWS];
        uint8_t   q[4 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.d[row] = from.d;
        for (int g = 0; g < 4; g++) {
            put(to.q, g, row, word(from.qs, g));
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int) { scale = Lanes::halves(packed.d + first); }
        void codes(int g, Integers & low, Integers & high) const {
            halves(packed.q, g, first, low, high);
        }
    };
};

struct Q4_1 {
    using Block                   = block_q4_1;
    static constexpr int  SUBS    = 1;
    static constexpr int  BIAS    = 0;
    static constexpr int  DEPTH   = 8;
    static constexpr bool HALVES  = false;
    static constexpr bool SHIFTED = true;
    static constexpr bool SIGNED  = false;

    struct Packed {
        ggml_half d[ROWS];
        ggml_half m[ROWS];
        uint8_t   q[4 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.d[row] = from.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d;
        to.m[row] = from.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.m;
        for (int g = 0; g < 4; g++) {
            put(to.q, g, row, word(from.qs, g));
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale, shift;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int) { scale = Lanes::halves(packed.d + first), shift = Lanes::halves(packed.m + first); }
        void codes(int g, Integers & low, Integers & high) const {
            halves(packed.q, g, first, low, high);
        }
    };
};

struct Q8_0 {
    using Block                   = block_q8_0;
    static constexpr int  SUBS    = 1;
    static constexpr int  BIAS    = LIFT;
    static constexpr int  DEPTH   = 1;
    static constexpr bool HALVES  = false;
    static constexpr bool SHIFTED = false;
    static constexpr bool SIGNED  = true;

    struct Packed {
        ggml_half d[ROWS];
        uint8_t   q[8 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.d[row] = from.d;
        for (int g = 0; g < 8; g++) {
            put(to.q, g, row, word((const uint8_t *) from.qs, g) ^ (LIFT ? 0x80808080 : 0));
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int) { scale = Lanes::halves(packed.d + first); }
        void codes(int g, Integers & low, Integers & high) const {
            low  = Lanes::load(packed.q + GROUP * g + 4 * first);
            high = Lanes::load(packed.q + GROUP * (g + 4) + 4 * first);
        }
    };
};

// Scales and minimums of six bits, of the eight blocks in a block of Q4_K and Q5_K, and what both are multiplied by.
struct Scales {
    ggml_half d[ROWS];
    ggml_half dmin[ROWS];
    uint8_t   low[8][ROWS];  // four bits of the scale, four of the minimum
    uint32_t  high[ROWS];    // two and two: bits 4 j to 4 j + 3 of block j

    template <class Block> void pack(int row, const Block & block) {
        const uint8_t * from = block.scales;
        d[row]               = block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d;
        dmin[row]            = block.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin;
        high[row]            = 0;
        for (int j = 0; j < 8; j++) {
            const uint32_t scale = j < 4 ? from[j] & 63 : (from[j + 4] & 15) | (from[j - 4] >> 6) << 4;
            const uint32_t least = j < 4 ? from[j + 4] & 63 : (from[j + 4] >> 4) | (from[j] >> 6) << 4;
            low[j][row]          = uint8_t((scale & 15) | (least & 15) << 4);
            high[row] |= (scale >> 4 | (least >> 4) << 2) << (4 * j);
        }
    }

    void read(int j, int first, Floats & scale, Floats & shift) const {
        const Integers few = Lanes::unsigned_bytes(low[j] + first), top = Lanes::right(Lanes::load(high + first), 4 * j);
        const Integers six   = Lanes::either(Lanes::both(few, Lanes::all(15)), Lanes::left(Lanes::both(top, Lanes::all(3)), 4));
        const Integers least = Lanes::either(Lanes::right(few, 4), Lanes::left(Lanes::both(top, Lanes::all(12)), 2));
        scale = Lanes::times(Lanes::halves(d + first), Lanes::floats(six));
        shift = Lanes::times(Lanes::halves(dmin + first), Lanes::times(Lanes::floats(least), Lanes::all(-1.0f)));
    }
};

// The bytes of group g, both halves of 32 codes of four bits: blocks lie in pairs, one in each half of 32 bytes.
static inline uint32_t paired(const uint8_t * qs, int block, int g) {
    const uint8_t * bytes = qs + 32 * (block / 2);
    const uint32_t  low = word(bytes, g), high = word(bytes, g + 4);
    return block % 2 ? (low >> 4 & LOW) | (high & HIGH) : (low & LOW) | (high & LOW) << 4;
}

struct Q4_K {
    using Block                   = block_q4_K;
    static constexpr int  SUBS    = 8;
    static constexpr int  BIAS    = 0;
    static constexpr int  DEPTH   = 8;
    static constexpr bool HALVES  = false;
    static constexpr bool SHIFTED = true;
    static constexpr bool SIGNED  = false;

    struct Packed {
        Scales    scales;
        uint8_t   q[SUBS][4 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.scales.pack(row, from);
        for (int j = 0; j < SUBS; j++) {
            for (int g = 0; g < 4; g++) {
                put(to.q[j], g, row, paired(from.qs, j, g));
            }
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale, shift;
        int            block = 0;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int j) {
            block = j;
            packed.scales.read(j, first, scale, shift);
        }
        void codes(int g, Integers & low, Integers & high) const {
            halves(packed.q[block], g, first, low, high);
        }
    };
};

struct Q5_K {
    using Block                   = block_q5_K;
    static constexpr int  SUBS    = 8;
    static constexpr int  BIAS    = 0;
    static constexpr int  DEPTH   = 4;
    static constexpr bool HALVES  = false;
    static constexpr bool SHIFTED = true;
    static constexpr bool SIGNED  = false;

    struct Packed {
        Scales    scales;
        uint8_t   fifth[SUBS][GROUP];  // bit g of byte b: of low weight 4 g + b; bit g + 4: of the high one
        uint8_t   q[SUBS][4 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.scales.pack(row, from);
        for (int j = 0; j < SUBS; j++) {
            uint32_t fifth = 0;
            for (int g = 0; g < 4; g++) {
                put(to.q[j], g, row, paired(from.qs, j, g));
            }
            for (int g = 0; g < 8; g++) {
                fifth |= (word(from.qh, g) >> j & 0x01010101) << g;
            }
            put(to.fifth[j], 0, row, fifth);
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale, shift;
        Integers       fifth;
        int            block = 0;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int j) {
            block = j;
            packed.scales.read(j, first, scale, shift);
            fifth = Lanes::load(packed.fifth[j] + 4 * first);
        }
        void codes(int g, Integers & low, Integers & high) const {
            const Integers bit = Lanes::bytes(16);
            halves(packed.q[block], g, first, low, high);
            low  = Lanes::either(low, Lanes::both(Lanes::left(fifth, 4 - g), bit));
            high = Lanes::either(high, Lanes::both(Lanes::right(fifth, g), bit));
        }
    };
};

struct Q6_K {
    using Block                   = block_q6_K;
    static constexpr int  SUBS    = 8;
    static constexpr int  BIAS    = 32;
    static constexpr int  DEPTH   = 2;
    static constexpr bool HALVES  = true;
    static constexpr bool SHIFTED = false;
    static constexpr bool SIGNED  = false;

    struct Packed {
        ggml_half d[ROWS];
        int8_t    scales[SUBS][2][ROWS];
        uint8_t   top[SUBS][2][GROUP];  // bits 2 g and 2 g + 1 of byte b: of weight 4 g + b of the half
        uint8_t   q[SUBS][4 * GROUP];
    };

    static void pack(Packed & to, int row, const Block & from) {
        to.d[row] = from.d;
        for (int j = 0; j < SUBS; j++) {
            const uint8_t * codes = from.ql + 64 * (j / 4) + 32 * (j % 2);
            const uint8_t * tops  = from.qh + 32 * (j / 4);
            uint32_t        top[2] = { 0, 0 };
            for (int g = 0; g < 4; g++) {
                const int      bits = j % 4 < 2 ? 0 : 4;
                const uint32_t low = word(codes, g) >> bits & LOW, high = word(codes, g + 4) >> bits & LOW;
                put(to.q[j], g, row, low | high << 4);
                top[0] |= (word(tops, g) >> (2 * (j % 4)) & 0x03030303) << (2 * g);
                top[1] |= (word(tops, g + 4) >> (2 * (j % 4)) & 0x03030303) << (2 * g);
            }
            for (int half = 0; half < 2; half++) {
                to.scales[j][half][row] = from.scales[2 * j + half];
                put(to.top[j][half], 0, row, top[half]);
            }
        }
    }

    struct Reader {
        const Packed & packed;
        int            first;
        Floats         scale, high_scale;
        Integers       top[2];
        int            block = 0;

        Reader(const Packed & packed, int first) : packed(packed), first(first) {}

        void open(int j) {
            block          = j;
            const Floats d = Lanes::halves(packed.d + first);
            scale          = Lanes::times(d, Lanes::floats(Lanes::signed_bytes(packed.scales[j][0] + first)));
            high_scale     = Lanes::times(d, Lanes::floats(Lanes::signed_bytes(packed.scales[j][1] + first)));
            top[0]         = Lanes::load(packed.top[j][0] + 4 * first);
            top[1]         = Lanes::load(packed.top[j][1] + 4 * first);
        }
        Integers raised(Integers code, Integers bits, int g) const {
            const Integers moved = g < 2 ? Lanes::left(bits, 4 - 2 * g) : Lanes::right(bits, 2 * g - 4);
            return Lanes::either(code, Lanes::both(moved, Lanes::bytes(0x30)));
        }
        void codes(int g, Integers & low, Integers & high) const {
            halves(packed.q[block], g, first, low, high);
            low = raised(low, top[0], g), high = raised(high, top[1], g);
        }
    };
};

}  // namespace edgellm
