# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

# Included by each Makefile.am.

# Convenient list terminator.
NULL =

# No -I. and -I$(srcdir): plugins/qcow2 has a config.h of its own, which
# must not be found in place of configure's.
AUTOMAKE_OPTIONS = nostdinc

CLEANFILES = *~ *.gcda *.gcno *.gcov .libs/*.gcda

AM_CPPFLAGS = \
	-I$(top_builddir) \
	-I$(top_srcdir)/common/include \
	-I$(top_srcdir)/common/utils \
	-I$(top_srcdir)/common/codec \
	-I$(top_srcdir)/common/qcow2 \
	$(NULL)
AM_CFLAGS = \
	$(C_STANDARD_CFLAGS) \
	$(WARNINGS_CFLAGS) \
	$(SANITIZER_CFLAGS) \
	$(COVERAGE_CFLAGS) \
	$(FUZZER_CFLAGS) \
	$(NBDKIT_CFLAGS) \
	$(NULL)
AM_LDFLAGS = \
	$(SANITIZER_LDFLAGS) \
	$(COVERAGE_LDFLAGS) \
	$(NULL)

# What plugins and filters are linked with.
MODULE_LINK_FLAGS = \
	-module -avoid-version -shared \
	$(AM_LDFLAGS) \
	$(SANITIZER_MODULE_LDFLAGS) \
	$(NULL)

# The engine with all that it needs, in link order.
ENGINE_LIBS = \
	$(top_builddir)/common/qcow2/libqcow2engine.la \
	$(top_builddir)/common/codec/libcodec.la \
	$(NULL)
# The same for programs without a server: test-log has the two functions
# of nbdkit that the engine calls.
TEST_LIBS = \
	$(top_builddir)/common/qcow2/libqcow2engine.la \
	$(top_builddir)/common/codec/libcodec.la \
	$(top_builddir)/common/qcow2/libtestlog.la \
	$(NULL)

# Each test runs under ./run, which finds the plugin and filters of the
# build tree, and ends a test that hangs.
LOG_COMPILER = $(top_builddir)/run
AM_LOG_FLAGS = --test
AM_TESTS_ENVIRONMENT = srcdir=$(srcdir); export srcdir;

check-valgrind:
	NBDKIT_VALGRIND=1 $(MAKE) check
.PHONY: check-valgrind

# Man pages.
POD2MAN_FLAGS = \
	--section=1 \
	--center="nbdkit" \
	--release="$(PACKAGE_NAME) $(PACKAGE_VERSION)" \
	--utf8 \
	--errors=die \
	$(NULL)
if HAVE_POD
SUFFIXES = .pod .1
.pod.1:
	$(AM_V_GEN)$(POD2MAN) $(POD2MAN_FLAGS) --name=$(*F) $< $@.tmp && mv $@.tmp $@
endif
