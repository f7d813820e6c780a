/* Counts instructions of parts of a program that runs in Valgrind (callgrind): called by harness/hot_path_cost.py.
 * Outside of Valgrind the requests do nothing.
 */
#include <valgrind/callgrind.h>

void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
