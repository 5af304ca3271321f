/* SPDX-License-Identifier: MIT
 * zip_crc() as it is where the processor does not multiply polynomials. */
#define CRC_TABLES
#define zip_crc crc_by_tables
#include "fs/formats/crc.c"
