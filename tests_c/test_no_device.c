/* Without a device (or with none visible) the library loads, counts none, says why, and refuses with a message. Never a simulation that
 * nobody asked for. */

#include <stdlib.h>

#include "check.h"

int main(void)
{
    int32_t count = -1;
    tcuda_stream_t stream = NULL;
    int status;

    setenv("TCUDA_BACKEND", "cuda", 1);
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    CHECK(!tcuda_is_available());
    CHECK_OK(tcuda_device_count(&count));
    CHECK_EQUAL(count, 0);
    CHECK(strlen(tcuda_backend_reason()) > 20);
    status = tcuda_stream_create(&stream, 0, 0);
    CHECK(status == TCUDA_ERROR_NO_DEVICE || status == TCUDA_ERROR_INSUFFICIENT_DRIVER || status == TCUDA_ERROR_INVALID_DEVICE);
    CHECK(stream == NULL);
    CHECK(strlen(tcuda_last_error_message()) > 20);
    if (strcmp(tcuda_backend_name(), "none") == 0)
        CHECK(strstr(tcuda_backend_reason(), "TCUDA_BACKEND") != NULL);
    return CHECK_DONE();
}
