§&
¢u
.
Identity

input"T
output"T"	
Ttype
C
Placeholder
output"dtype"
dtypetype"
shapeshape:"serve*2.21.02v2.21.0-rc1-5-ga481b10260d‰
|
in_boolPlaceholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0
*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
}
in_uint8Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
~
	in_uint16Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
~
	in_uint32Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
~
	in_uint64Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
|
in_int8Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
}
in_int16Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
}
in_int32Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
}
in_int64Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0	*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
|
in_fp16Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
|
in_fp32Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
|
in_fp64Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
|
in_bf16Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
}
in_bytesPlaceholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
X
IdentityIdentityin_bool*
T0
*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[

Identity_1Identityin_uint8*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
\

Identity_2Identity	in_uint16*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
\

Identity_3Identity	in_uint32*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
\

Identity_4Identity	in_uint64*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
Z

Identity_5Identityin_int8*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[

Identity_6Identityin_int16*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[

Identity_7Identityin_int32*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[

Identity_8Identityin_int64*
T0	*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
Z

Identity_9Identityin_fp16*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[
Identity_10Identityin_fp32*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[
Identity_11Identityin_fp64*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
[
Identity_12Identityin_bf16*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
\
Identity_13Identityin_bytes*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ"ª*ó
serving_defaultß
4
in_bf16)
	in_bf16:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
4
in_bool)
	in_bool:0
ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
6
in_bytes*

in_bytes:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
4
in_fp16)
	in_fp16:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
4
in_fp32)
	in_fp32:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
4
in_fp64)
	in_fp64:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
6
in_int16*

in_int16:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
6
in_int32*

in_int32:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
6
in_int64*

in_int64:0	ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
4
in_int8)
	in_int8:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
8
	in_uint16+
in_uint16:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
8
	in_uint32+
in_uint32:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
8
	in_uint64+
in_uint64:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
6
in_uint8*

in_uint8:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
out_bf16-
Identity_12:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ6
out_bool*

Identity:0
ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ:
	out_bytes-
Identity_13:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ8
out_fp16,
Identity_9:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
out_fp32-
Identity_10:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
out_fp64-
Identity_11:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
	out_int16,
Identity_6:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
	out_int32,
Identity_7:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
	out_int64,
Identity_8:0	ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ8
out_int8,
Identity_5:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ:

out_uint16,
Identity_2:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ:

out_uint32,
Identity_3:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ:

out_uint64,
Identity_4:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ9
	out_uint8,
Identity_1:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿtensorflow/serving/predict