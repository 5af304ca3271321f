/* SPDX-License-Identifier: MIT
 *
 * The CRC-32 of zip. If the processor has carry-less multiplication, 64 bytes are folded at once;
 * else four bits at a time with a table of 16 entries, or, for much data, eight bytes at a time
 * with tables that are computed on the stack in the time of some 10 KiB. Depends on libc alone,
 * because libcairn uses it, too (docs/PERFORMANCE.md lists alternatives).
 */
#include "fs/formats/formats.h"

#if defined(__x86_64__) && !defined(CRC_TABLES) /* the tests want both variants */
#define HAVE_FOLD
#include <immintrin.h>
#endif

#define MUCH 65536u /* from here on, computing the tables is worth it */
#define BLOCK 64u /* folded at once */

static const uint32_t nibble[16] = {
	0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
	0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
	0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

static uint32_t word(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
	crc ^= byte;
	crc = crc >> 4 ^ nibble[crc & 15];
	return crc >> 4 ^ nibble[crc & 15];
}

static uint32_t crc_much(uint32_t crc, const uint8_t *p, size_t n)
{
	uint32_t t[8][256];

	for (unsigned i = 0; i < 256; i++)
		t[0][i] = crc_byte(0, (uint8_t)i);
	for (unsigned k = 1; k < 8; k++)
		for (unsigned i = 0; i < 256; i++)
			t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
	for (; n >= 8; n -= 8, p += 8) {
		uint32_t a = crc ^ word(p), b = word(p + 4);

		crc = t[7][a & 255] ^ t[6][a >> 8 & 255] ^ t[5][a >> 16 & 255] ^ t[4][a >> 24] ^
		      t[3][b & 255] ^ t[2][b >> 8 & 255] ^ t[1][b >> 16 & 255] ^ t[0][b >> 24];
	}
	return crc;
}

/* ---- by carry-less multiplication: Gopal and others, "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel, 2009; bits reflected ---- */

#ifdef HAVE_FOLD
#define FOLD __attribute__((target("pclmul,sse4.1")))
#define WIDE __attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))
#define WIDE_BLOCK (4 * BLOCK)

static bool can_fold(void)
{
	return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

FOLD static inline __m128i load(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

/* x moved on by k, plus the data there. */
FOLD static inline __m128i onto(__m128i x, __m128i k, __m128i there)
{
	return _mm_xor_si128(
		_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)),
		there);
}

/* x^(d+32) and x^(d-32) modulo the polynomial: move on by d bits */
#define K2048 0x1322d1430, 0x11542778a
#define K512 0x1c6e41596, 0x154442bd4
#define K128 0x0ccaa009e, 0x1751997d0

/* Reduces the four lanes and the rest, n bytes (a multiple of 16), to 128 bits, to 64, to 32
 * (Barrett). */
FOLD static uint32_t fold_end(__m128i a, __m128i b, __m128i c, __m128i d, const uint8_t *p,
			      size_t n)
{
	const __m128i k512 = _mm_set_epi64x(K512), k128 = _mm_set_epi64x(K128);
	const __m128i k64 = _mm_set_epi64x(0, 0x163cd6124);
	/* the polynomial's inverse, and itself */
	const __m128i poly = _mm_set_epi64x(0x1f7011641, 0x1db710641);
	const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
	__m128i t;

	for (; n >= BLOCK; p += BLOCK, n -= BLOCK) {
		a = onto(a, k512, load(p));
		b = onto(b, k512, load(p + 16));
		c = onto(c, k512, load(p + 32));
		d = onto(d, k512, load(p + 48));
	}
	a = onto(onto(onto(a, k128, b), k128, c), k128, d);
	for (; n; p += 16, n -= 16)
		a = onto(a, k128, load(p));
	a = _mm_xor_si128(_mm_clmulepi64_si128(a, k128, 0x10), _mm_srli_si128(a, 8));
	t = _mm_srli_si128(a, 4);
	a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low), k64, 0x00), t);
	t = _mm_clmulepi64_si128(_mm_and_si128(a, low), poly, 0x10);
	t = _mm_clmulepi64_si128(_mm_and_si128(t, low), poly, 0x00);
	return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
}

FOLD static uint32_t fold_128(uint32_t crc, const uint8_t *p, size_t n)
{
	__m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128((int)crc));

	return fold_end(a, load(p + 16), load(p + 32), load(p + 48), p + BLOCK, n - BLOCK);
}

/* The same on 512 bits. */
WIDE static inline __m512i wide_onto(__m512i x, __m512i k, __m512i there)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
					 _mm512_clmulepi64_epi128(x, k, 0x11), there, 0x96);
}

WIDE static uint32_t fold_512(uint32_t crc, const uint8_t *p, size_t n)
{
	const __m512i k2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(K2048));
	const __m512i k512 = _mm512_broadcast_i32x4(_mm_set_epi64x(K512));
	__m512i v[4];

	for (unsigned i = 0; i < 4; i++)
		v[i] = _mm512_loadu_si512(p + BLOCK * i);
	v[0] = _mm512_xor_si512(v[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	for (p += WIDE_BLOCK, n -= WIDE_BLOCK; n >= WIDE_BLOCK; p += WIDE_BLOCK, n -= WIDE_BLOCK)
		for (unsigned i = 0; i < 4; i++)
			v[i] = wide_onto(v[i], k2048, _mm512_loadu_si512(p + BLOCK * i));
	for (unsigned i = 1; i < 4; i++)
		v[0] = wide_onto(v[0], k512, v[i]);
	return fold_end(_mm512_extracti32x4_epi32(v[0], 0), _mm512_extracti32x4_epi32(v[0], 1),
			_mm512_extracti32x4_epi32(v[0], 2), _mm512_extracti32x4_epi32(v[0], 3), p,
			n);
}

/* n is a multiple of 16, at least BLOCK. */
static uint32_t fold(uint32_t crc, const uint8_t *p, size_t n)
{
	if (n >= 4 * WIDE_BLOCK && __builtin_cpu_supports("avx512f") &&
	    __builtin_cpu_supports("vpclmulqdq"))
		return fold_512(crc, p, n);
	return fold_128(crc, p, n);
}
#else
static bool can_fold(void)
{
	return false;
}

static uint32_t fold(uint32_t crc, const uint8_t *p, size_t n)
{
	(void)p;
	(void)n;
	return crc;
}
#endif

/* ---- both ---- */

uint32_t zip_crc(uint32_t crc, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	crc = ~crc;
	if (len >= BLOCK && can_fold()) {
		crc = fold(crc, p, len - len % 16);
		p += len - len % 16;
		len %= 16;
	} else if (len >= MUCH) {
		crc = crc_much(crc, p, len);
		p += len - len % 8;
		len %= 8;
	}
	for (size_t i = 0; i < len; i++)
		crc = crc_byte(crc, p[i]);
	return ~crc;
}
