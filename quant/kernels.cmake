# The fused attention kernels. Each unit is compiled for all of its targets; the units are kept
# apart by format so that none takes long.
target_sources(kvsieve_quant PRIVATE
  kernels_channel.cc
  kernels_channel_vnni.cc
  kernels_fp8.cc
  kernels_half.cc
  kernels_int8.cc
  kernels_int8_vnni.cc
  kernels_nibble.cc
  kernels_nibble_vnni.cc
  kernels_plain.cc
  kernels_planes.cc
  kernels_planes_vnni.cc
  kernels_query.cc)
