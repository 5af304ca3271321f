/* SPDX-License-Identifier: MIT
 * The kernel's OOM killer, proc_pid_oom_score_adj(5). */
#include "fs/base/base.h"

#include <stdlib.h>

#define SCORE_FILE "/proc/self/oom_score_adj"
#define LAST (-900) /* of all that may be killed at all */

static int score_before; /* what cairnfs was started with */

static bool get_score(int *score)
{
	FILE *f = fopen(SCORE_FILE, "re");
	bool ok = f && fscanf(f, "%d", score) == 1;

	if (f)
		fclose(f);
	return ok;
}

static bool set_score(int score)
{
	FILE *f = fopen(SCORE_FILE, "we");

	if (!f)
		return false;
	fprintf(f, "%d", score);
	return !fclose(f);
}

/* Without CAP_SYS_RESOURCE only what was raised can be lowered again. */
void oom_protect(void)
{
	if (get_score(&score_before) && score_before > LAST && !set_score(LAST) && score_before > 0)
		set_score(0);
}

void oom_unprotect(void)
{
	int score;

	if (get_score(&score) && score < score_before)
		set_score(score_before);
}
