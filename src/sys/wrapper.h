/* What bindgen reads: the headers a C program includes. */
#include <infiniband/verbs.h>
