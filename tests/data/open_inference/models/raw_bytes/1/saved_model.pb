±
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
shapeshape:"serve*2.21.02v2.21.0-rc1-5-ga481b10260d™
O
INPUT0Placeholder*
_output_shapes
:*
dtype0*
shape:
A
IdentityIdentityINPUT0*
T0*
_output_shapes
:"ª*n
serving_default[

INPUT0
INPUT0:0
OUTPUT0

Identity:0tensorflow/serving/predict