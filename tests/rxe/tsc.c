/* Prints the frequency of the time stamp counter of this machine in kHz. `vm` says what for. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct instant {
    double ns;
    double ticks;
};

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

/* One instant on both clocks. If the system interrupts a reading, the reading takes long. So this takes the shortest of
 * many. */
static struct instant read_both(void) {
    struct instant best = {0, 0};
    double shortest = 1e18;
    for (int i = 0; i < 1000; i++) {
        double before = now_ns();
        double ticks = __rdtsc();
        double after = now_ns();
        if (after - before < shortest) {
            shortest = after - before;
            best = (struct instant){(before + after) / 2, ticks};
        }
    }
    return best;
}

int main(void) {
    struct timespec pause = {0, 200 * 1000 * 1000};
    struct instant from = read_both();
    nanosleep(&pause, NULL);
    struct instant to = read_both();
    printf("%.0f\n", (to.ticks - from.ticks) / (to.ns - from.ns) * 1e6);
    return 0;
}
