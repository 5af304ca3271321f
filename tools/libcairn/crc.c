/* SPDX-License-Identifier: MIT
 * For programs that write zip archives into shards: the one function that is shared with
 * fs/formats/. */
#include "priv.h"

#include "fs/formats/formats.h"

uint32_t cairn_crc32(uint32_t crc, const void *bytes, size_t n)
{
	return zip_crc(crc, bytes, n);
}
