# SPDX-License-Identifier: BSD-3-Clause

# QCOW2_CC_OPTION(FLAG, VARIABLE, [IF-NOT])
#
# Append FLAG to VARIABLE if the compiler takes it.
AC_DEFUN([QCOW2_CC_OPTION], [
  AC_MSG_CHECKING([whether $CC takes $1])
  qcow2_save_CFLAGS="$CFLAGS"
  # Without -Werror clang only warns of an option that it does not know.
  CFLAGS="$CFLAGS -Werror $1"
  AC_COMPILE_IFELSE([AC_LANG_SOURCE([[int x;]])],
    [AC_MSG_RESULT([yes])
     $2="$$2 $1"],
    [AC_MSG_RESULT([no])
     $3])
  CFLAGS="$qcow2_save_CFLAGS"
  AC_SUBST([$2])
])

# QCOW2_OPTIONAL_LIBRARY(NAME, PREFIX, MODULE, WHAT-FOR, INCLUDE, BODY)
#
# --without-NAME; else use MODULE if pkg-config finds it and a program
# links with it.  Sets have_NAME, PREFIX_CFLAGS, PREFIX_LIBS, and defines
# HAVE_PREFIX.  --with-NAME makes its absence an error.
AC_DEFUN([QCOW2_OPTIONAL_LIBRARY], [
  AC_ARG_WITH([$1],
    [AS_HELP_STRING([--without-$1], [do without $1 ($4)])],
    [], [with_$1=check])
  have_$1=no
  AS_IF([test "x$with_$1" != "xno"], [
    PKG_CHECK_MODULES([$2], [$3], [have_$1=yes], [have_$1=no])
    AS_IF([test "x$have_$1" = "xyes"], [
      qcow2_save_CFLAGS="$CFLAGS"
      qcow2_save_LIBS="$LIBS"
      CFLAGS="$CFLAGS $$2_CFLAGS"
      LIBS="$LIBS $$2_LIBS"
      AC_MSG_CHECKING([whether a program links with $1])
      AC_LINK_IFELSE([AC_LANG_PROGRAM([$5], [$6])],
        [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         have_$1=no])
      CFLAGS="$qcow2_save_CFLAGS"
      LIBS="$qcow2_save_LIBS"
    ])
    AS_IF([test "x$have_$1" = "xyes"], [
      AC_DEFINE([HAVE_$2], [1], [Define to 1 if $1 is there: $4.])
    ], [
      AS_IF([test "x$with_$1" = "xyes"],
            [AC_MSG_ERROR([--with-$1 given, but $1 was not found])])
      $2_CFLAGS=
      $2_LIBS=
    ])
  ])
  AM_CONDITIONAL([HAVE_$2], [test "x$have_$1" = "xyes"])
  AC_SUBST([$2_CFLAGS])
  AC_SUBST([$2_LIBS])
  AC_SUBST([have_$1])
])

# QCOW2_SANITIZER_PRELOAD(SANITIZERS, VARIABLE)
#
# Find the shared run time of the sanitizer, to be loaded before a program
# that was not built with it.  Empty if there is none (clang's thread
# sanitizer): then only programs linked with it can run.
AC_DEFUN([QCOW2_SANITIZER_PRELOAD], [
  AC_MSG_CHECKING([for the shared library of the sanitizer])
  AS_CASE([,$1,],
    [*,address,*], [qcow2_san=asan],
    [*,thread,*], [qcow2_san=tsan],
    [*,undefined,*], [qcow2_san=ubsan],
    [qcow2_san=none])
  $2=
  for f in lib$qcow2_san.so \
           libclang_rt.$qcow2_san-$host_cpu.so libclang_rt.$qcow2_san.so; do
    p="`$CC -print-file-name=$f 2>/dev/null`"
    AS_IF([test -f "$p"], [
      AS_IF([test "x$cc_is_clang" = "xyes"], [
        AS_CASE([$p], [*libclang_rt*], [$2="$p"; break])
      ], [
        $2="$p"; break
      ])
    ])
  done
  AC_MSG_RESULT([${$2:-none}])
])
