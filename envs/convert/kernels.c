// What numpy needs many passes for, in one: an adapter's pairs merged into rows of bfloat16, and casts.
//
// Compiled by build.py.  It calls no library, and keeps nothing between calls.
// scripts/ingot/model/checkpoint/merge.py says what is merged, calls it, and computes what it leaves;
// scripts/ingot/model/tensors/cast.py the same of casts.

#include <stdint.h>

enum { LANES = 8, WIDTH = 2 * LANES, ROWS = 4, BLOCK = 32 };
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float floats_at __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef int8_t codes __attribute__((vector_size(LANES), aligned(1)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

// The nearest bfloat16s, of ties the larger; what decides between two of them is whether both ends of the
// interval that holds the exact sum have the same.
static inline words nearest(floats values) { return ((words)values + 0x8000) >> 16; }

// Merge `rows` rows of a tile, WIDTH columns wide; returns of each value a bit, whether it is in doubt.
static inline __attribute__((always_inline)) uint64_t merge_tile(
    int rows, long rank, const float *scaled, const float *factors, const float *away, const uint16_t *bits,
    uint16_t *out, long stride, words *largest)
{
    floats sums[ROWS][2] = {0};
    for (long k = 0; k < rank; k++)
        for (int row = 0; row < rows; row++)
            for (int half = 0; half < 2; half++)
                sums[row][half] += scaled[row * rank + k] * *(const floats *)(factors + k * WIDTH + half * LANES);
    uint64_t doubts = 0;
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            halves stored = *(const halves *)(bits + row * stride + half * LANES);
            floats value = sums[row][half] + (floats)(__builtin_convertvector(stored, words) << 16);
            floats plain = (floats)((words)value & 0x7fffffff), apart = plain * 0x1p-22f + away[row];
            words low = nearest(value - apart), high = nearest(value + apart);
            *(halves *)(out + row * stride + half * LANES) = __builtin_convertvector(low, halves);
            *largest = __builtin_elementwise_max(*largest, (words)plain);
            uint64_t lanes = (uint8_t)~__builtin_ia32_movmskps256((floats)(low == high));
            doubts |= lanes << (row * WIDTH + half * LANES);
        }
    return doubts;
}

// The same of one value in float64, whose sums are 2^28 times as exact; false where that is in doubt too.
// It is in none where nothing was rounded: adapters of bfloat16 make many ties.
static int settle(
    uint16_t stored, long rank, const double *scaled, const float *factors, float away, long whole, uint16_t *out)
{
    double weight = ((union { uint32_t bits; float value; }){(uint32_t)stored << 16}).value, value = 0, lost = 0;
    for (long k = 0; k <= rank; k++) {  // the weight last: else each sum would be off by a part of it
        double factor = k < rank ? factors[k * WIDTH] : 1, scale = k < rank ? scaled[k] : weight;
        double product = scale * factor, sum = value + product, added = sum - value;
        lost += __builtin_fabs(__builtin_fma(scale, factor, -product));
        lost += __builtin_fabs((value - (sum - added)) + (product - added));
        value = sum;
    }
    double plain = __builtin_fabs(value), apart = whole && lost == 0 ? 0 : plain * 0x1p-50 + away * 0x1p-28;
    union { double value; uint64_t bits; } low = {value - apart}, high = {value + apart};
    uint64_t half = (1ull << 44) - 1, below = low.bits + half + (low.bits >> 45 & 1);  // of a tie the even one
    uint64_t nearest = below >> 45;  // a sign, 11 bits of an exponent and 7 of a fraction
    *out = (nearest >> 18 << 15) | (uint16_t)((nearest & 0x3ffff) - ((1023 - 127) << 7));
    return plain > 0x1p-125 && plain < 0x1p127 && nearest == (high.bits + half + (high.bits >> 45 & 1)) >> 45;
}

// Rows [rows, columns] of bfloat16, merged into `out`.  The places of those that are in doubt to the end go to
// `doubtful`, which has room for all; returns how many there are.
//   columns: a multiple of WIDTH; scaled [rows, rank], and `exact`, the same in float64, where `whole` says that
//   nothing of them was rounded; factors [columns / WIDTH, rank, WIDTH], aligned to a vector; away [rows]: more than
//   a sum of that row is off by in float32; largest: no sum of float32 had a larger magnitude, as bits.
long merge_bf16(
    const uint16_t *bits, long rows, long columns, const float *scaled, const double *exact, const float *factors,
    long rank, const float *away, long whole, uint16_t *out, uint32_t *doubtful, uint32_t *largest)
{
    words most = {0};
    long found = 0;
    for (long column = 0; column < columns; column += WIDTH, factors += WIDTH * rank)
        for (long row = 0, some; row < rows; row += some) {
            some = rows - row < ROWS ? 1 : ROWS;
            long place = row * columns + column;
            const float *here = scaled + row * rank;
            uint64_t doubts = some == ROWS
                ? merge_tile(ROWS, rank, here, factors, away + row, bits + place, out + place, columns, &most)
                : merge_tile(1, rank, here, factors, away + row, bits + place, out + place, columns, &most);
            for (; doubts; doubts &= doubts - 1) {
                long lane = __builtin_ctzll(doubts) % WIDTH, down = row + __builtin_ctzll(doubts) / WIDTH;
                long at = down * columns + column + lane;
                if (!settle(bits[at], rank, exact + down * rank, factors + lane, away[down], whole, out + at))
                    doubtful[found++] = at;
            }
        }
    *largest = 0;
    for (int lane = 0; lane < LANES; lane++) *largest = most[lane] > *largest ? most[lane] : *largest;
    return found;
}

static inline floats of_bf16(const uint16_t *bits) {
    return (floats)(__builtin_convertvector(*(const halves *)bits, words) << 16);
}

static inline halves to_f16(floats values) {
    return (halves)__builtin_ia32_vcvtps2ph256(values, 0);  // to the nearest, of ties the even one
}

// Values of bfloat16, LANES at a time, as float16; returns how many finite ones became infinite.
long bf16_to_f16(const uint16_t *bits, long count, uint16_t *out)
{
    words most = {0};
    for (long at = 0; at < count; at += LANES) {
        floats values = of_bf16(bits + at);
        *(halves *)(out + at) = to_f16(values);
        most = __builtin_elementwise_max(most, (words)values & 0x7fffffff);
    }
    uint32_t largest = 0;
    for (int lane = 0; lane < LANES; lane++) largest = most[lane] > largest ? most[lane] : largest;
    long found = 0;
    for (long at = 0; largest > 0x477f0000 && at < count; at++)  // 65280, the largest bfloat16 that float16 holds
        found += (bits[at] & 0x7fff) > 0x477f && (bits[at] & 0x7fff) < 0x7f80;
    return found;
}

// A block of Q8_0: d = max|x| / 127 as float16, then x / d, halves rounded away from 0; 1 where d is beyond float16.
static inline __attribute__((always_inline)) int block_q8_0(const floats values[BLOCK / LANES], uint8_t *out)
{
#pragma clang fp contract(off)
    words most = {0};
    for (int part = 0; part < BLOCK / LANES; part++)
        most = __builtin_elementwise_max(most, (words)values[part] & 0x7fffffff);
    union { uint32_t bits; float value; } largest = {__builtin_reduce_max(most)};
    float scale = largest.value / 127, inverse = scale == 0 ? 0 : 1 / scale;
    floats scales = scale - (floats){0};
    __builtin_memcpy(out, &(uint16_t){to_f16(scales)[0]}, 2);
    for (int part = 0; part < BLOCK / LANES; part++) {
        floats scaled = values[part] * inverse;
        // 0.5 less one bit, with the sign of each value: added, then cut
        scaled += (floats)(((words)scaled & 0x80000000) | 0x3effffff);
        integers whole = __builtin_ia32_cvttps2dq256(scaled);
        *(codes *)(out + 2 + part * LANES) = __builtin_convertvector(whole, codes);
    }
    return scale > 65504;
}

// Blocks of BLOCK values of bfloat16 as Q8_0; returns how many values had a scale beyond float16.
long bf16_to_q8_0(const uint16_t *bits, long count, uint8_t *out)
{
    long found = 0;
    for (long at = 0; at < count; at += BLOCK, out += 2 + BLOCK) {
        floats values[BLOCK / LANES];
        for (int part = 0; part < BLOCK / LANES; part++) values[part] = of_bf16(bits + at + part * LANES);
        found += block_q8_0(values, out) * BLOCK;
    }
    return found;
}

// The same of float32.
long f32_to_q8_0(const float *bits, long count, uint8_t *out)
{
    long found = 0;
    for (long at = 0; at < count; at += BLOCK, out += 2 + BLOCK) {
        floats values[BLOCK / LANES];
        for (int part = 0; part < BLOCK / LANES; part++) values[part] = *(const floats_at *)(bits + at + part * LANES);
        found += block_q8_0(values, out) * BLOCK;
    }
    return found;
}
