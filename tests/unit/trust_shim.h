/* SPDX-License-Identifier: MIT
 * fs/base/trust.c for a test in C++, which fs.h is not. */
#ifndef TRUST_SHIM_H
#define TRUST_SHIM_H
#ifdef __cplusplus
extern "C" {
#endif
struct io_store;
/* The calling process becomes one; place: a descriptor of staging. */
int shim_trust_worker(struct io_store *store, int place);
int shim_trust_keeper(struct io_store *store);
void shim_trust_freezer(void);
void shim_trust_nursery(void);
void shim_trust_parser(void);	/* in a nursery */
#ifdef __cplusplus
}
#endif
#endif
