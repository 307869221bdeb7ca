/* The library loads, says which backend it has, and allocates. */

#include <stdlib.h>

#include "check.h"

int main(void)
{
    int32_t count = -1;
    void *block = NULL;

    CHECK(getenv("TCUDA_BACKEND") != NULL);
    CHECK_TEXT(tcuda_backend_name(), getenv("TCUDA_BACKEND"));
    CHECK_OK(tcuda_device_count(&count));
    CHECK(count >= 1);
    CHECK(tcuda_device_count(NULL) != TCUDA_SUCCESS);
    CHECK(strlen(tcuda_last_error_message()) > 0);
    CHECK_OK(tcuda_malloc_cached(&block, 1000, NULL));
    CHECK(block != NULL);
    CHECK_OK(tcuda_free_cached(block));
    return CHECK_DONE();
}
