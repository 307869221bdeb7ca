/* Two estimates by random numbers, each with its standard error, beside what they should be:
 *
 *   pi        points in a square, drawn by the device and counted by the host
 *   a call    the price of a European option: normal numbers become payoffs by a function that is compiled at run time
 *
 * A fixed seed and the portable geometry draw the same numbers on every device, and sums are made in the order of the elements. So this
 * prints, on the simulated device as on any GPU:
 *
 *     pi:   3.140203, standard error 0.001135, of 2097152 samples (3.141593)
 *     call: 7.125466, standard error 0.006117, of 4194304 samples (7.128065) */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcuda.h"

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { ROUNDS = 4, NUMBERS = 1 << 20 };

/* The option: today's price and the price to buy at, yearly rate and volatility, one year. */
static const double SPOT = 100, STRIKE = 105, RATE = 0.03, VOLATILITY = 0.2;

static const char *const PAYOFF =
    "template <typename T>\n"
    "T payoff(T normal, T spot, T strike, T rate, T volatility) {\n"
    "    T price = spot * exp(rate - volatility * volatility / 2 + volatility * normal);\n"
    "    return price > strike ? (price - strike) * exp(-rate) : T(0);\n"
    "}\n";

struct sums {
    double count, sum, squares;
};

static void add(struct sums *sums, double value)
{
    sums->count += 1;
    sums->sum += value;
    sums->squares += value * value;
}

/* Prints an estimate; 1 if it is within four standard errors of the truth. */
static int report(const char *name, const struct sums *sums, double truth)
{
    const double mean = sums->sum / sums->count, variance = sums->squares / sums->count - mean * mean;
    const double error = sqrt(variance / sums->count);

    printf("%-5s %.6f, standard error %.6f, of %.0f samples (%.6f)\n", name, mean, error, sums->count, truth);
    return fabs(mean - truth) < 4 * error;
}

static int estimate_pi(tcuda_tensor_t *numbers, double *host, tcuda_generator_t generator)
{
    struct sums inside = {0, 0, 0};
    int round, i;

    for (round = 0; round < ROUNDS; round++) {
        TRY(tcuda_random_uniform(numbers, -1, 1, generator, NULL));
        TRY(tcuda_copy(host, numbers->data, NUMBERS * sizeof *host, false));
        for (i = 0; i < NUMBERS; i += 2)
            add(&inside, host[i] * host[i] + host[i + 1] * host[i + 1] < 1 ? 4 : 0);
    }
    return report("pi:", &inside, acos(-1.0));
}

/* Black and Scholes. */
static double exact_price(void)
{
    const double d1 = (log(SPOT / STRIKE) + RATE + VOLATILITY * VOLATILITY / 2) / VOLATILITY, d2 = d1 - VOLATILITY;
    return SPOT * erfc(-d1 / sqrt(2.0)) / 2 - STRIKE * exp(-RATE) * erfc(-d2 / sqrt(2.0)) / 2;
}

static int estimate_call(tcuda_tensor_t *numbers, double *host, tcuda_generator_t generator)
{
    const tcuda_jit_scalar_t scalars[] = {{"spot", TCUDA_SCALAR_REAL, 0, SPOT, 0},
                                          {"strike", TCUDA_SCALAR_REAL, 0, STRIKE, 0},
                                          {"rate", TCUDA_SCALAR_REAL, 0, RATE, 0},
                                          {"volatility", TCUDA_SCALAR_REAL, 0, VOLATILITY, 0}};
    const tcuda_tensor_t *in_place = numbers;
    struct sums payoffs = {0, 0, 0};
    tcuda_jit_t payoff;
    int round, i;

    TRY(tcuda_jit_create(&payoff, PAYOFF, scalars, 4));
    for (round = 0; round < ROUNDS; round++) {
        tcuda_status_t status;

        TRY(tcuda_random_normal(numbers, 0, 1, generator, NULL));
        status = tcuda_jit_call_out(payoff, &in_place, 1, &in_place, 1, NULL, 0, NULL);
        if (status == TCUDA_ERROR_NOT_SUPPORTED) {
            printf("call: not estimated, because there is no compiler for its function: %s\n", tcuda_last_error_message());
            TRY(tcuda_jit_destroy(payoff));
            return 1;
        }
        TRY(status);
        TRY(tcuda_copy(host, numbers->data, NUMBERS * sizeof *host, false));
        for (i = 0; i < NUMBERS; i++)
            add(&payoffs, host[i]);
    }
    TRY(tcuda_jit_destroy(payoff));
    return report("call:", &payoffs, exact_price());
}

int main(void)
{
    const tcuda_dtype_t float64 = TCUDA_DTYPE_FLOAT64;
    const int64_t shape = NUMBERS;
    double *host = (double *)malloc(NUMBERS * sizeof *host);
    tcuda_managed_tensor_t *numbers;
    tcuda_generator_t generator;
    int right;

    if (host == NULL)
        return 1;
    TRY(tcuda_generator_create(&generator, TCUDA_DEVICE_CURRENT));
    TRY(tcuda_generator_manual_seed(generator, 2026));
    TRY(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_PORTABLE, 0, 0));
    TRY(tcuda_tensor_empty(&numbers, TCUDA_DEVICE_CURRENT, float64, 1, &shape, NULL));

    right = estimate_pi(&numbers->tensor, host, generator);
    right &= estimate_call(&numbers->tensor, host, generator);
    if (!right)
        fprintf(stderr, "more than four standard errors from the truth\n");

    TRY(tcuda_tensor_destroy(numbers));
    TRY(tcuda_generator_destroy(generator));
    free(host);
    return !right;
}
