¦
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
shapeshape:"serve*2.21.02v2.21.0-rc1-5-ga481b10260dÝ
|
in_int8Placeholder*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*%
shape:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
X
IdentityIdentityin_int8*
T0*0
_output_shapes
:ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ"ª*ž
serving_defaultŠ
4
in_int8)
	in_int8:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ6
out_int8*

Identity:0ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿtensorflow/serving/predict