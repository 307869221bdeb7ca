/* Words like random_words', of generators that are bad on purpose: the battery has to find them.
 *
 *     planted_words counter|lcg|rounds|again SEED
 *
 * counter   a counter times a constant
 * lcg       the low half of a linear congruential generator of 64 bits
 * rounds    Philox with 2 rounds of 10
 * again     good words, but the same 16 MiB over and over, as from a generator whose offset stands still */

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 4 << 20 };

static void philox(uint32_t *out, uint64_t seed, uint64_t block, int rounds)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c[4] = {0, 0, 0, 0};

    c[0] = (uint32_t)block;
    c[1] = (uint32_t)(block >> 32);
    while (rounds-- > 0) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

int main(int count, char **arguments)
{
    static uint32_t words[WORDS];
    const char *kind = count == 3 ? arguments[1] : "";
    uint64_t state = count == 3 ? strtoull(arguments[2], NULL, 0) : 0, block = 0;
    int i;

    if (strcmp(kind, "counter") && strcmp(kind, "lcg") && strcmp(kind, "rounds") && strcmp(kind, "again")) {
        fprintf(stderr, "usage: planted_words counter|lcg|rounds|again SEED\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    do {
        if (strcmp(kind, "again") == 0)
            block = 0;
        for (i = 0; i < WORDS; i++) {
            if (*kind == 'c') {
                words[i] = (uint32_t)state++ * 2654435769u;
            } else if (*kind == 'l') {
                state = state * 6364136223846793005u + 1442695040888963407u;
                words[i] = (uint32_t)state;
            } else if (i % 4 == 0) {
                philox(words + i, state, block++, *kind == 'r' ? 2 : 10);
            }
        }
    } while (fwrite(words, sizeof *words, WORDS, stdout) == WORDS);
    return errno == EPIPE ? 0 : 1;
}
