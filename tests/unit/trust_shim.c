/* SPDX-License-Identifier: MIT */
#include "tests/unit/trust_shim.h"

#include "fs/parser/inside.h"

static struct fs fs;

int shim_trust_worker(struct io_store *store, int place)
{
	fs.store = store;
	fs.place.base = fs.place.huge = fs.place.small = place;
	return trust_worker(&fs);
}

int shim_trust_keeper(struct io_store *store)
{
	fs.store = store;
	return trust_keeper(&fs);
}

void shim_trust_freezer(void)
{
	trust_freezer();
}

void shim_trust_nursery(void)
{
	trust_nursery(PARSER_MEMORY);
}

void shim_trust_parser(void)
{
	trust_parser();
}
