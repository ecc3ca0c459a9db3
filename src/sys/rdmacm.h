/* What bindgen reads for rdma_cm. */
#include <rdma/rdma_cma.h>
