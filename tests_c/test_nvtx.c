/* Marks and ranges from C, where no tool listens: nothing fails, nothing is needed. */

#include "check.h"

static void without_a_domain(void)
{
    uint64_t id = 7;

    CHECK(!tcuda_nvtx_is_attached());
    CHECK_EQUAL(tcuda_nvtx_range_push("a range"), -2);
    CHECK_EQUAL(tcuda_nvtx_range_pop(), -2);
    CHECK_OK(tcuda_nvtx_mark("a mark"));
    CHECK_OK(tcuda_nvtx_range_start(&id, "a range"));
    CHECK_EQUAL(id, 0);
    CHECK_OK(tcuda_nvtx_range_end(id));
    CHECK_STATUS(tcuda_nvtx_mark(NULL), TCUDA_ERROR_INVALID_ARGUMENT);
}

static void with_a_domain(void)
{
    tcuda_nvtx_event_t event = TCUDA_NVTX_EVENT_INIT;
    tcuda_nvtx_domain_t domain = NULL;
    uint64_t id = 7;

    CHECK_OK(tcuda_nvtx_domain_create(&domain, "mine"));
    CHECK(domain != NULL);
    CHECK_STATUS(tcuda_nvtx_domain_mark(domain, &event), TCUDA_ERROR_INVALID_ARGUMENT);
    event.message = "an event";
    event.color = 0xFF00FF00u;
    event.payload = TCUDA_NVTX_PAYLOAD_SIGNED;
    event.integer = -1;
    CHECK_OK(tcuda_nvtx_domain_name_category(domain, 1, "one"));
    CHECK_OK(tcuda_nvtx_domain_mark(domain, &event));
    CHECK_EQUAL(tcuda_nvtx_domain_range_push(domain, &event), -2);
    CHECK_EQUAL(tcuda_nvtx_domain_range_pop(domain), -2);
    CHECK_OK(tcuda_nvtx_domain_range_start(domain, &id, &event));
    CHECK_OK(tcuda_nvtx_domain_range_end(domain, id));
    CHECK_OK(tcuda_nvtx_domain_destroy(domain));
    CHECK_STATUS(tcuda_nvtx_domain_destroy(domain), TCUDA_ERROR_INVALID_HANDLE);
}

static void on_a_stream(void)
{
    uint64_t range = 0;

    CHECK_OK(tcuda_nvtx_stream_range_start(&range, "work", NULL));
    CHECK_OK(tcuda_nvtx_stream_range_end(range, NULL));
    CHECK_STATUS(tcuda_nvtx_stream_range_end(range, NULL), TCUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
    without_a_domain();
    with_a_domain();
    on_a_stream();
    CHECK_OK(tcuda_shutdown());
    without_a_domain();
    return CHECK_DONE();
}
